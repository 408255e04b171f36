-- name: launching_process
-- question: Did this process launch work on a GPU?
-- row: one row if so, else none
-- optional CUPTI_ACTIVITY_KIND_RUNTIME: globalTid, nameId
-- optional StringIds: id, value
-- distinct: CUPTI_ACTIVITY_KIND_RUNTIME
-- parameter pid: INTEGER, process id on its host
-- column found: INTEGER, always 1
SELECT 1 AS found
FROM CUPTI_ACTIVITY_KIND_RUNTIME
WHERE ((globalTid >> 24) & 16777215) = :pid
  AND nameId IN (SELECT id FROM StringIds WHERE value LIKE 'cu%Launch%')
LIMIT 1
