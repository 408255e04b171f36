-- name: capture_metadata
-- question: How was the capture made? Allow-listed properties only; never the environment as a whole
-- row: one property of the capture
-- needs META_DATA_CAPTURE: name, value
-- column name: TEXT, property
-- column value: TEXT, its value
SELECT name AS name, value AS value
FROM META_DATA_CAPTURE
WHERE (name LIKE '%CUDA_GRAPH_TRACE_OPTIONS:MODE' AND lower(value) IN ('graph', 'node'))
   OR ((name LIKE '%COLLECT_CUDA_TRACE' OR name LIKE '%COLLECT_NVTX_TRACE') AND lower(value) IN ('true', 'false'))
