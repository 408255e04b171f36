-- name: strings
-- question: Which texts do these ids stand for?
-- row: one id that exists
-- needs StringIds: id, value
-- parameter ids: TEXT, JSON array of ids
-- column id: INTEGER, the id
-- column value: TEXT, the text
SELECT s.id AS id, s.value AS value
FROM json_each(:ids) AS wanted
JOIN StringIds AS s ON s.id = wanted.value
