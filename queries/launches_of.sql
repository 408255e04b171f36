-- name: launches_of
-- question: When and on which thread were these GPU events launched?
-- row: one runtime or driver call
-- needs CUPTI_ACTIVITY_KIND_RUNTIME: start, end
-- optional CUPTI_ACTIVITY_KIND_RUNTIME: globalTid, correlationId
-- parameter first_row: INTEGER, first rowid to read
-- parameter last_row: INTEGER, last rowid to read
-- parameter ids: TEXT, JSON array of correlation ids (of any process)
-- column start_ns: INTEGER ns, start of the call
-- column end_ns: INTEGER ns, end of the call
-- column thread: INTEGER globalTid
-- column correlation: INTEGER, joins with GPU events of the same process
SELECT
  start AS start_ns,
  "end" AS end_ns,
  globalTid AS thread,
  correlationId AS correlation
FROM CUPTI_ACTIVITY_KIND_RUNTIME
WHERE rowid BETWEEN :first_row AND :last_row
  AND correlationId IN (SELECT value FROM json_each(:ids))
