-- Purpose:    Sets groups done on pending records that are for them, takes back what comes again, and completes what is
--             covered. Answers for each changed record whether it is completed.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 groups that are done, ?4 groups that are not any more, ?5 now_ms
-- Index:      headwater_record_pending
UPDATE headwater_record
SET completed = (completed | (?3 & required)) & ~?4,
    completed_at_ms = CASE WHEN required & ~((completed | ?3) & ~?4) = 0 THEN ?5 END
WHERE row_key BETWEEN ?1 AND ?2
    AND completed_at_ms IS NULL
    AND ((required & ~completed & ?3) | (completed & ?4)) <> 0
RETURNING completed_at_ms IS NOT NULL
