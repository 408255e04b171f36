-- name: export_metadata_old
-- question: Which nsys wrote this export, in which schema? (up to 3.1.7)
-- row: one property of the export
-- needs EXPORT_META_DATA: name, value
-- column name: TEXT, property
-- column value: TEXT, its value
SELECT name AS name, value AS value
FROM EXPORT_META_DATA
