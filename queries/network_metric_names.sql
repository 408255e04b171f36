-- name: network_metric_names
-- question: Which counters of network adapters and switches were sampled?
-- row: one counter
-- needs TARGET_INFO_NETWORK_METRICS: metricsListId, metricsIdx, name
-- optional TARGET_INFO_NETWORK_METRICS: unit
-- column list_id: INTEGER, list of counters
-- column idx: INTEGER, counter inside the list
-- column name: TEXT, name of the counter
-- column unit: TEXT, unit of its samples (bytes/ms)
SELECT metricsListId AS list_id, metricsIdx AS idx, name, unit
FROM TARGET_INFO_NETWORK_METRICS
ORDER BY metricsListId, metricsIdx
