-- Purpose:    Sets a group on pending records of a range, as done where it is.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 the group's bit as a mask, ?4 the same where it is done, else 0
-- Index:      headwater_record_pending
UPDATE headwater_record
SET required = required | ?3, completed = completed | ?4
WHERE row_key BETWEEN ?1 AND ?2 AND completed_at_ms IS NULL AND required & ?3 = 0
