-- name: calls
-- question: Which CUDA calls did each thread make?
-- row: one runtime or driver call
-- needs CUPTI_ACTIVITY_KIND_RUNTIME: start, end, nameId
-- optional CUPTI_ACTIVITY_KIND_RUNTIME: globalTid, correlationId
-- parameter first_row: INTEGER, first rowid to read
-- parameter last_row: INTEGER, last rowid to read
-- column start_ns: INTEGER ns, start of the call
-- column end_ns: INTEGER ns, end of the call
-- column thread: INTEGER globalTid
-- column correlation: INTEGER, joins with GPU events of the same process
-- column name_id: INTEGER, StringIds.id of the API name
SELECT
  start AS start_ns,
  "end" AS end_ns,
  globalTid AS thread,
  correlationId AS correlation,
  nameId AS name_id
FROM CUPTI_ACTIVITY_KIND_RUNTIME
WHERE rowid BETWEEN :first_row AND :last_row
