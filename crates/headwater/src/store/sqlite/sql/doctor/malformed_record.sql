-- Purpose:    Records whose sets contradict each other or their state.
-- Parameters: none
-- Index:      a scan of the records
SELECT row_key >> 43, row_key & 8796093022207, required, completed
FROM headwater_record
WHERE completed & ~required <> 0
    OR (completed_at_ms IS NULL) <> (required & ~completed <> 0)
