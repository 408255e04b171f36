-- name: has_payloads
-- question: Do NVTX ranges carry binary payloads?
-- row: one row if so, else none
-- optional NVTX_EVENTS: binaryData
-- distinct: NVTX_EVENTS
-- column found: INTEGER, always 1
SELECT 1 AS found
FROM NVTX_EVENTS
WHERE binaryData IS NOT NULL
LIMIT 1
