-- name: payload_enums
-- question: Which values do enumerated payload fields have?
-- row: one value of one enum (repeated per process)
-- needs NVTX_PAYLOAD_ENUM_ENTRIES: domainId, schemaId, name
-- optional NVTX_PAYLOAD_ENUM_ENTRIES: value
-- optional NVTX_PAYLOAD_ENUMS: domainId, schemaId, size
-- column domain: INTEGER, NVTX domain inside the process
-- column schema_id: INTEGER, enum inside the domain
-- column name: TEXT, name of the value
-- column value: INTEGER, the value
-- column size_bytes: INTEGER bytes of a field of this enum
SELECT
  v.domainId AS domain,
  v.schemaId AS schema_id,
  v.name AS name,
  coalesce(v.value, 0) AS value,
  (SELECT max(e.size) FROM NVTX_PAYLOAD_ENUMS AS e WHERE e.domainId = v.domainId AND e.schemaId = v.schemaId) AS size_bytes
FROM NVTX_PAYLOAD_ENUM_ENTRIES AS v
ORDER BY v.rowid
