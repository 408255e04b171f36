-- name: gpus
-- question: Which GPUs does the host have?
-- row: one GPU
-- needs TARGET_INFO_GPU: id
-- optional TARGET_INFO_GPU: name, uuid, busLocation
-- column gpu: INTEGER, id of the physical GPU
-- column name: TEXT, product name
-- column uuid: TEXT, may be empty
-- column bus: TEXT, PCI location
SELECT id AS gpu, name AS name, uuid AS uuid, busLocation AS bus
FROM TARGET_INFO_GPU
ORDER BY id
