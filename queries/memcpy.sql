-- name: memcpy
-- question: Which copies ran, in which direction and of what size?
-- row: one copy
-- needs CUPTI_ACTIVITY_KIND_MEMCPY: start, end, deviceId, streamId, bytes
-- optional CUPTI_ACTIVITY_KIND_MEMCPY: globalPid, contextId, correlationId, copyKind, graphNodeId
-- parameter first_row: INTEGER, first rowid to read
-- parameter last_row: INTEGER, last rowid to read
-- column start_ns: INTEGER ns, start since the session start
-- column end_ns: INTEGER ns, end
-- column process: INTEGER globalPid; NULL in reduced exports
-- column device: INTEGER, CUDA ordinal inside the process
-- column context: INTEGER, CUDA context inside the process
-- column stream: INTEGER, CUDA stream inside the process
-- column correlation: INTEGER, id of its launch inside the process
-- column operation: INTEGER, copy kind (1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP, 11-13 unified memory)
-- column graph_node: INTEGER, NULL unless the kernel is a node of a CUDA graph
-- column bytes: INTEGER bytes moved
SELECT
  start AS start_ns,
  "end" AS end_ns,
  globalPid AS process,
  deviceId AS device,
  contextId AS context,
  streamId AS stream,
  correlationId AS correlation,
  copyKind AS operation,
  graphNodeId AS graph_node,
  bytes AS bytes
FROM CUPTI_ACTIVITY_KIND_MEMCPY
WHERE rowid BETWEEN :first_row AND :last_row
