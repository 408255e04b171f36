-- name: event_records
-- question: Which CUDA events were recorded on which stream?
-- row: one cudaEventRecord
-- needs CUPTI_ACTIVITY_KIND_CUDA_EVENT: streamId, eventId
-- optional CUPTI_ACTIVITY_KIND_CUDA_EVENT: globalPid, contextId, correlationId, eventSyncId
-- parameter first_row: INTEGER, first rowid to read
-- parameter last_row: INTEGER, last rowid to read
-- column process: INTEGER globalPid
-- column context: INTEGER context
-- column stream: INTEGER stream it was recorded on
-- column correlation: INTEGER, its call
-- column event_id: INTEGER, CUDA event (reused)
-- column sync_id: INTEGER, joins with synchronizations of the process
SELECT
  globalPid AS process,
  contextId AS context,
  streamId AS stream,
  correlationId AS correlation,
  eventId AS event_id,
  eventSyncId AS sync_id
FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT
WHERE rowid BETWEEN :first_row AND :last_row
