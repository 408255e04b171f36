-- name: rank_environment
-- question: Which rank and world size did the launcher set? Nothing else of the environment is read
-- row: one variable
-- needs META_DATA_CAPTURE: name, value
-- column value: TEXT, NAME=number
SELECT value AS value
FROM META_DATA_CAPTURE
WHERE name LIKE '%ENVIRONMENT%'
  AND substr(value, 1, instr(value, '=') - 1) IN (
    'RANK', 'WORLD_SIZE', 'LOCAL_RANK',
    'OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'MV2_COMM_WORLD_RANK', 'MV2_COMM_WORLD_SIZE',
    'PMIX_RANK', 'PMI_RANK', 'PMI_SIZE', 'FLUX_TASK_RANK', 'FLUX_JOB_SIZE', 'SLURM_PROCID', 'SLURM_NTASKS'
  )
  AND trim(substr(value, instr(value, '=') + 1), '"'' ') NOT GLOB '*[^0-9]*'
