-- name: export_metadata
-- question: Which nsys wrote this export, in which schema?
-- row: one property of the export; others, and values of another form, can hold paths and names
-- needs META_DATA_EXPORT: name, value
-- column name: TEXT, property
-- column value: TEXT, its value
SELECT name AS name, value AS value
FROM META_DATA_EXPORT
WHERE name IN (
    'EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION', 'EXPORT_SCHEMA_VERSION_MAJOR', 'EXPORT_SCHEMA_VERSION_MINOR',
    'EXPORT_SCHEMA_VERSION_MICRO', 'EXPORT_PARAM_TIME_SHIFT'
  ) AND value NOT GLOB '*[^-0-9a-fv.]*'
  OR name = 'EXPORT_PARAM_TIME_NORMALIZE' AND lower(value) IN ('true', 'false')
