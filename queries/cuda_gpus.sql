-- name: cuda_gpus
-- question: Which GPUs does the host have (oldest exports)?
-- row: one GPU
-- needs TARGET_INFO_CUDA_GPU: id
-- optional TARGET_INFO_CUDA_GPU: name
-- column gpu: INTEGER, id
-- column name: TEXT, product name
SELECT id AS gpu, name AS name
FROM TARGET_INFO_CUDA_GPU
ORDER BY id
