-- name: kernels_outside_graphs
-- question: Which kernels ran on which GPU, and when (where no CUDA graph was launched)?
-- row: one kernel execution
-- needs CUPTI_ACTIVITY_KIND_KERNEL: start, end, deviceId, streamId, shortName
-- optional CUPTI_ACTIVITY_KIND_KERNEL: globalPid, contextId, correlationId
-- parameter first_row: INTEGER, first rowid to read
-- parameter last_row: INTEGER, last rowid to read
-- column start_ns: INTEGER ns, start since the session start
-- column end_ns: INTEGER ns, end
-- column process: INTEGER globalPid; NULL in reduced exports
-- column device: INTEGER, CUDA ordinal inside the process
-- column context: INTEGER, CUDA context inside the process
-- column stream: INTEGER, CUDA stream inside the process
-- column correlation: INTEGER, id of its launch inside the process
-- column name_id: INTEGER, StringIds.id of the base name
SELECT
  start AS start_ns,
  "end" AS end_ns,
  globalPid AS process,
  deviceId AS device,
  contextId AS context,
  streamId AS stream,
  correlationId AS correlation,
  shortName AS name_id
FROM CUPTI_ACTIVITY_KIND_KERNEL
WHERE rowid BETWEEN :first_row AND :last_row
