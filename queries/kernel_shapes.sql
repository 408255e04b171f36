-- name: kernel_shapes
-- question: With which grid and block was each kernel launched?
-- row: one kernel execution whose times can be (within 2^61 ns), in the order of kernels.sql
-- needs CUPTI_ACTIVITY_KIND_KERNEL: start, end
-- optional CUPTI_ACTIVITY_KIND_KERNEL: gridX, gridY, gridZ, blockX, blockY, blockZ
-- parameter first_row: INTEGER, first rowid to read
-- parameter last_row: INTEGER, last rowid to read
-- column grid_x: INTEGER; NULL if the export lacks it
-- column grid_y: INTEGER; NULL if the export lacks it
-- column grid_z: INTEGER; NULL if the export lacks it
-- column block_x: INTEGER; NULL if the export lacks it
-- column block_y: INTEGER; NULL if the export lacks it
-- column block_z: INTEGER; NULL if the export lacks it
SELECT
  gridX AS grid_x,
  gridY AS grid_y,
  gridZ AS grid_z,
  blockX AS block_x,
  blockY AS block_y,
  blockZ AS block_z
FROM CUPTI_ACTIVITY_KIND_KERNEL
WHERE rowid BETWEEN :first_row AND :last_row
  AND "end" >= start AND start > -2305843009213693952 AND "end" < 2305843009213693952
