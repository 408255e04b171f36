-- name: cuda_gpus
-- question: Which GPUs does the host have (oldest exports)?
-- row: one GPU
-- optional TARGET_INFO_CUDA_GPU: deviceId, name
-- column gpu: INTEGER, id of the physical GPU; NULL if the export numbers them in another way
-- column name: TEXT, product name
SELECT deviceId AS gpu, name AS name
FROM TARGET_INFO_CUDA_GPU
ORDER BY deviceId
