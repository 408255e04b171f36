-- name: diagnostics
-- question: What did nsys itself warn about?
-- row: one message of severity 2 (warning) or 3 (error)
-- needs DIAGNOSTIC_EVENT: text, severity
-- column text: TEXT, message
-- column severity: INTEGER, 2 warning, 3 error
-- column count: INTEGER, how often
SELECT text AS text, severity AS severity, count(*) AS count
FROM DIAGNOSTIC_EVENT
WHERE severity >= 2
GROUP BY text, severity
ORDER BY severity DESC, text
