-- name: export_metadata
-- question: Which nsys wrote this export, in which schema?
-- row: one property of the export
-- needs META_DATA_EXPORT: name, value
-- column name: TEXT, property
-- column value: TEXT, its value
SELECT name AS name, value AS value
FROM META_DATA_EXPORT
