-- Purpose:    Whether a record of a topic carries a bit.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 the bit as a mask
-- Index:      the primary key
SELECT EXISTS (
    SELECT 1 FROM headwater_record
    WHERE row_key BETWEEN ?1 AND ?2 AND (required | completed) & ?3 <> 0
)
