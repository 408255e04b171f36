-- name: nvtx_texts
-- question: Which registered texts do NVTX ranges use?
-- row: one distinct text
-- needs StringIds: id, value
-- optional NVTX_EVENTS: textId
-- distinct: NVTX_EVENTS
-- column id: INTEGER, StringIds.id
-- column value: TEXT, the text
SELECT s.id AS id, s.value AS value
FROM (SELECT DISTINCT textId FROM NVTX_EVENTS WHERE textId IS NOT NULL) AS used
JOIN StringIds AS s ON s.id = used.textId
