-- name: payload_entries
-- question: How are the fields of NVTX payloads laid out?
-- row: one field of one payload schema (repeated per process)
-- needs NVTX_PAYLOAD_SCHEMA_ENTRIES: domainId, schemaId, idx, type, name
-- optional NVTX_PAYLOAD_SCHEMA_ENTRIES: flags, arrayOrUnionDetail, offset
-- column domain: INTEGER, NVTX domain inside the process
-- column schema_id: INTEGER, schema inside the domain
-- column idx: INTEGER, position
-- column type: INTEGER, NVTX payload entry type, or the id of a schema or enum
-- column flags: INTEGER, pointer and array flags
-- column name: TEXT, label of the field
-- column detail: INTEGER, array length
-- column byte_offset: INTEGER bytes from the start of the payload; NULL: after the field before, aligned
SELECT
  e.domainId AS domain,
  e.schemaId AS schema_id,
  e.idx AS idx,
  e.type AS type,
  e.flags AS flags,
  e.name AS name,
  e.arrayOrUnionDetail AS detail,
  e."offset" AS byte_offset
FROM NVTX_PAYLOAD_SCHEMA_ENTRIES AS e
ORDER BY e.rowid
