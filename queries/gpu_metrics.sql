-- name: gpu_metrics
-- question: What did the sampled GPU metrics say?
-- row: one sample of one metric
-- needs GPU_METRICS: timestamp, typeId, metricId, value
-- parameter first_row: INTEGER, first rowid to read
-- parameter last_row: INTEGER, last rowid to read
-- column time_ns: INTEGER ns, time of the sample
-- column type_id: INTEGER, metric set and GPU (lowest byte)
-- column metric_id: INTEGER, metric inside the set
-- column value: INTEGER, value, % where the name says so
SELECT
  m.timestamp AS time_ns,
  m.typeId AS type_id,
  m.metricId AS metric_id,
  m.value AS value
FROM GPU_METRICS AS m
WHERE m.rowid BETWEEN :first_row AND :last_row
