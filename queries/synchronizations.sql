-- name: synchronizations
-- question: Which streams and host threads waited for which event?
-- row: one synchronisation
-- needs CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: start, end, streamId
-- optional CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: globalPid, contextId, correlationId, syncType, deprecatedSyncType, eventId, eventSyncId
-- parameter first_row: INTEGER, first rowid to read
-- parameter last_row: INTEGER, last rowid to read
-- column start_ns: INTEGER ns, start
-- column end_ns: INTEGER ns, end
-- column process: INTEGER globalPid
-- column context: INTEGER context
-- column stream: INTEGER, stream that waits or is waited for
-- column correlation: INTEGER, its call
-- column type: INTEGER, 1 event, 2 stream wait event, 3 stream, 4 context
-- column event_id: INTEGER, CUDA event (reused)
-- column sync_id: INTEGER, joins with event records of the process
SELECT
  start AS start_ns,
  "end" AS end_ns,
  globalPid AS process,
  contextId AS context,
  streamId AS stream,
  correlationId AS correlation,
  coalesce(syncType, deprecatedSyncType) AS type,
  eventId AS event_id,
  eventSyncId AS sync_id
FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION
WHERE rowid BETWEEN :first_row AND :last_row
