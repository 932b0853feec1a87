-- Purpose:    Whether a topic has a record.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key
SELECT EXISTS (
    SELECT 1 FROM headwater_record
    WHERE row_key BETWEEN ?1 AND ?2
)
