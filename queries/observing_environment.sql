-- name: observing_environment
-- question: Which variables change what is measured? Their names only; no value leaves the report
-- row: one variable that is set so that it does
-- needs META_DATA_CAPTURE: name, value
-- column variable: TEXT, name of the variable
SELECT DISTINCT variable
FROM (
  SELECT
    substr(value, 1, instr(value, '=') - 1) AS variable,
    upper(trim(substr(value, instr(value, '=') + 1), '"'' ')) AS setting
  FROM META_DATA_CAPTURE
  WHERE name LIKE '%ENVIRONMENT%' AND instr(value, '=') > 1
)
WHERE (
    variable IN (
      'CUDA_LAUNCH_BLOCKING', 'TORCH_NCCL_ENABLE_TIMING', 'NCCL_ENABLE_TIMING',
      'TORCH_NCCL_BLOCKING_WAIT', 'NCCL_BLOCKING_WAIT', 'TORCH_NCCL_DESYNC_DEBUG', 'NCCL_DESYNC_DEBUG',
      'PYTORCH_NO_CUDA_MEMORY_CACHING', 'TORCH_NCCL_NAN_CHECK', 'NCCL_PROFILER_PLUGIN', 'FLASH_ATTENTION_DETERMINISTIC',
      'TF_DETERMINISTIC_OPS', 'TF_CUDNN_DETERMINISTIC'
    )
    AND setting NOT IN ('', '0', 'FALSE', 'NO', 'OFF', 'N')
  )
  OR (variable = 'CUDA_DEVICE_MAX_CONNECTIONS' AND setting = '1')
  OR (variable = 'NCCL_DEBUG' AND setting IN ('INFO', 'TRACE'))
  OR (variable = 'TORCH_DISTRIBUTED_DEBUG' AND setting = 'DETAIL')
  OR (variable = 'NVTE_ALLOW_NONDETERMINISTIC_ALGO' AND setting IN ('0', 'FALSE', 'NO', 'OFF'))
  OR (
    variable = 'XLA_FLAGS' AND setting LIKE '%XLA\_GPU\_DETERMINISTIC\_OPS%' ESCAPE '\'
    AND setting NOT LIKE '%XLA\_GPU\_DETERMINISTIC\_OPS=FALSE%' ESCAPE '\'
  )
  OR (variable = 'CUBLAS_WORKSPACE_CONFIG' AND setting IN (':16:8', ':4096:8'))
ORDER BY variable
