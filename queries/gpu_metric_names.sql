-- name: gpu_metric_names
-- question: Which GPU metrics were sampled?
-- row: one metric
-- needs TARGET_INFO_GPU_METRICS: typeId, metricId, metricName
-- column type_id: INTEGER, metric set and GPU (lowest byte)
-- column metric_id: INTEGER, metric inside the set
-- column name: TEXT, name with its unit
SELECT typeId AS type_id, metricId AS metric_id, metricName AS name
FROM TARGET_INFO_GPU_METRICS
ORDER BY typeId, metricId
