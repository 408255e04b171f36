-- name: processes
-- question: Which processes ran GPU work or called CUDA?
-- row: one process
-- optional CUPTI_ACTIVITY_KIND_KERNEL: globalPid
-- optional CUPTI_ACTIVITY_KIND_MEMCPY: globalPid
-- optional CUPTI_ACTIVITY_KIND_MEMSET: globalPid
-- optional CUPTI_ACTIVITY_KIND_GRAPH_TRACE: globalPid
-- optional CUPTI_ACTIVITY_KIND_RUNTIME: globalTid
-- column process: INTEGER globalPid
SELECT globalPid AS process FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid IS NOT NULL
UNION
SELECT globalPid FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE globalPid IS NOT NULL
UNION
SELECT globalPid FROM CUPTI_ACTIVITY_KIND_MEMSET WHERE globalPid IS NOT NULL
UNION
SELECT globalPid FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE WHERE globalPid IS NOT NULL
UNION
SELECT globalTid >> 24 << 24 FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE globalTid >> 24 <> 0
