-- name: host_identity
-- question: Which hosts do reports share? Only compared and aliased, never shown
-- row: one property that identifies the host
-- needs TARGET_INFO_SYSTEM_ENV: name, value
-- column value: TEXT, host name
SELECT value AS value
FROM TARGET_INFO_SYSTEM_ENV
WHERE name IN ('Hostname', 'HostName', 'hostname', 'Host name')
ORDER BY value
