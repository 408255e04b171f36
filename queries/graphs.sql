-- name: graphs
-- question: Which CUDA graphs were traced as one span?
-- row: one execution of a whole graph
-- needs CUPTI_ACTIVITY_KIND_GRAPH_TRACE: start, end, deviceId, streamId
-- optional CUPTI_ACTIVITY_KIND_GRAPH_TRACE: globalPid, contextId, correlationId
-- parameter first_row: INTEGER, first rowid to read
-- parameter last_row: INTEGER, last rowid to read
-- column start_ns: INTEGER ns, start since the session start
-- column end_ns: INTEGER ns, end
-- column process: INTEGER globalPid; NULL in reduced exports
-- column device: INTEGER, CUDA ordinal inside the process
-- column context: INTEGER, CUDA context inside the process
-- column stream: INTEGER, CUDA stream inside the process
-- column correlation: INTEGER, id of its launch inside the process
SELECT
  start AS start_ns,
  "end" AS end_ns,
  globalPid AS process,
  deviceId AS device,
  contextId AS context,
  streamId AS stream,
  correlationId AS correlation
FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE
WHERE rowid BETWEEN :first_row AND :last_row
