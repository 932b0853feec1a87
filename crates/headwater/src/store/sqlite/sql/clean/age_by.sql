-- Purpose:    The last offset that was published by an elapsed time, as far as it was noted.
-- Parameters: ?1 topic_id, ?2 elapsed_ms
-- Index:      the primary key
SELECT last_offset
FROM headwater_age
WHERE topic_id = ?1 AND elapsed_ms <= ?2
ORDER BY elapsed_ms DESC
LIMIT 1
