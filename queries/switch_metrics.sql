-- name: switch_metrics
-- question: What did the sampled counters of each InfiniBand switch say?
-- row: one sample of one counter
-- needs NET_IB_SWITCH_METRIC: start, end, globalId, metricsListId, metricsIdx, value
-- parameter first_row: INTEGER, first rowid to read
-- parameter last_row: INTEGER, last rowid to read
-- column start_ns: INTEGER ns, begin of the interval that it is of
-- column end_ns: INTEGER ns, end of the interval that it is of
-- column device: INTEGER, which InfiniBand switch
-- column list_id: INTEGER, list of counters
-- column idx: INTEGER, counter inside the list
-- column value: NUMBER, mean of the interval, in the unit of the counter
SELECT
  m.start AS start_ns,
  m."end" AS end_ns,
  m.globalId AS device,
  m.metricsListId AS list_id,
  m.metricsIdx AS idx,
  m.value AS value
FROM NET_IB_SWITCH_METRIC AS m
WHERE m.rowid BETWEEN :first_row AND :last_row
