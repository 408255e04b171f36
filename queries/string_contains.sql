-- name: string_contains
-- question: Does any text of the export contain this literal?
-- row: one row if so, else none
-- needs StringIds: value
-- parameter literal: TEXT, what to look for
-- column found: INTEGER, always 1
SELECT 1 AS found
FROM StringIds
WHERE instr(value, :literal) > 0
LIMIT 1
