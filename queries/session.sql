-- name: session
-- question: When did the profiling session start?
-- row: the session
-- optional TARGET_INFO_SESSION_START_TIME: utcEpochNs
-- column utc_epoch_ns: INTEGER ns since 1970 UTC, the zero of all event times
SELECT utcEpochNs AS utc_epoch_ns
FROM TARGET_INFO_SESSION_START_TIME
LIMIT 1
