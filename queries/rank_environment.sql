-- name: rank_environment
-- question: Which rank and world size did the launcher set? Nothing else of the environment is read
-- row: one variable
-- needs META_DATA_CAPTURE: name, value
-- column value: TEXT, NAME=number
SELECT value AS value
FROM META_DATA_CAPTURE
WHERE name LIKE '%ENVIRONMENT%'
  AND (value LIKE 'RANK=%' OR value LIKE 'WORLD_SIZE=%' OR value LIKE 'LOCAL_RANK=%')
  AND trim(substr(value, instr(value, '=') + 1), '"'' ') NOT GLOB '*[^0-9]*'
