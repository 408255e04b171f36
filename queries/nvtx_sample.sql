-- name: nvtx_sample
-- question: Which push/pop and start/end ranges come first, by name?
-- row: one range that ended, of the first 200,000
-- needs NVTX_EVENTS: start, eventType
-- optional NVTX_EVENTS: end, textId, text
-- optional StringIds: id, value
-- column name: TEXT, its name
-- column length_ns: INTEGER ns, its length
SELECT coalesce(CAST(n.text AS TEXT), s.value) AS name, n."end" - n.start AS length_ns
FROM (SELECT * FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND "end" IS NOT NULL LIMIT 200000) AS n
LEFT JOIN StringIds AS s ON s.id = n.textId
