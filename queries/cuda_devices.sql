-- name: cuda_devices
-- question: Which physical GPU is a process's CUDA ordinal?
-- row: one ordinal of one process
-- needs TARGET_INFO_CUDA_DEVICE: pid, cudaId, gpuId
-- column pid: INTEGER, process id
-- column device: INTEGER, CUDA ordinal inside the process
-- column gpu: INTEGER, id in TARGET_INFO_GPU
SELECT pid AS pid, cudaId AS device, gpuId AS gpu
FROM TARGET_INFO_CUDA_DEVICE
ORDER BY pid, cudaId
