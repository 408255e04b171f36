-- name: nvtx
-- question: Which NVTX ranges and marks were recorded, with their payloads?
-- row: one NVTX event
-- needs NVTX_EVENTS: start, eventType
-- optional NVTX_EVENTS: end, globalTid, domainId, textId, text, binaryData
-- parameter first_row: INTEGER, first rowid to read
-- parameter last_row: INTEGER, last rowid to read
-- column start_ns: INTEGER ns, start
-- column end_ns: INTEGER ns, end; NULL for marks and ranges that never ended
-- column type: INTEGER, 34 mark, 59 push/pop, 60 start/end, 70/71 imported, 75 domain
-- column thread: INTEGER globalTid of the thread that opened it
-- column domain: INTEGER, NVTX domain inside the process
-- column text_id: INTEGER, StringIds.id of a registered name; -1 if none
-- column text: BLOB, bytes of an unregistered name
-- column payload: BLOB, binary payload; empty without --include-blobs=true
SELECT
  start AS start_ns,
  "end" AS end_ns,
  eventType AS type,
  coalesce(globalTid, 0) AS thread,
  coalesce(domainId, 0) AS domain,
  coalesce(textId, -1) AS text_id,
  coalesce(CAST(text AS BLOB), x'') AS text,
  coalesce(CAST(binaryData AS BLOB), x'') AS payload
FROM NVTX_EVENTS
WHERE rowid BETWEEN :first_row AND :last_row AND eventType IN (34, 59, 60, 70, 71, 75)
