-- Purpose:    Takes a group out of pending records, and completes what is covered without it. Answers for each changed
--             record whether it is completed.
-- Parameters: ?1 row_key after, ?2 row_key to, ?3 the group's bit as a mask, ?4 now_ms
-- Index:      headwater_record_pending
UPDATE headwater_record
SET required = required & ~?3,
    completed = completed & ~?3,
    completed_at_ms = CASE WHEN required & ~?3 & ~completed = 0 THEN ?4 END
WHERE row_key > ?1 AND row_key <= ?2
    AND completed_at_ms IS NULL
    AND (required | completed) & ?3 <> 0
RETURNING completed_at_ms IS NOT NULL
