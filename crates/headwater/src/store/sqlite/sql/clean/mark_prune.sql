-- Purpose:    Forgets the marks before the newest one that is old enough; all of them where nothing is reckoned from them.
-- Parameters: ?1 topic_id, ?2 old enough at this time, or NULL
-- Index:      the primary key
DELETE FROM headwater_mark
WHERE topic_id = ?1
    AND (?2 IS NULL OR marked_at_ms < (
        SELECT max(old.marked_at_ms) FROM headwater_mark AS old
        WHERE old.topic_id = ?1 AND old.marked_at_ms <= ?2
    ))
