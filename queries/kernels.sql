-- name: kernels
-- question: Which kernels ran on which GPU, and when (named by their base name)?
-- row: one kernel execution
-- needs CUPTI_ACTIVITY_KIND_KERNEL: start, end, deviceId, streamId, shortName
-- optional CUPTI_ACTIVITY_KIND_KERNEL: globalPid, contextId, correlationId, graphNodeId
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
-- column graph_node: INTEGER, NULL unless the kernel is a node of a CUDA graph
SELECT
  start AS start_ns,
  "end" AS end_ns,
  globalPid AS process,
  deviceId AS device,
  contextId AS context,
  streamId AS stream,
  correlationId AS correlation,
  shortName AS name_id,
  graphNodeId AS graph_node
FROM CUPTI_ACTIVITY_KIND_KERNEL
WHERE rowid BETWEEN :first_row AND :last_row
