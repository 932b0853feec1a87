-- Purpose:    Forgets what was noted before the newest note that is old enough, and what is about removed messages; all of
--             it where no age removes anything.
-- Parameters: ?1 topic_id, ?2 old enough at this elapsed time, or NULL, ?3 the first offset
-- Index:      the primary key
DELETE FROM headwater_age
WHERE topic_id = ?1
    AND (?2 IS NULL OR last_offset < ?3 - 1 OR elapsed_ms < (
        SELECT max(old.elapsed_ms) FROM headwater_age AS old
        WHERE old.topic_id = ?1 AND old.elapsed_ms <= ?2
    ))
