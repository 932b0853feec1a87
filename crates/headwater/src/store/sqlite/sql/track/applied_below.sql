-- Purpose:    Forgets what was set in records that are removed.
-- Parameters: ?1 subscription_id, ?2 the topic's first offset, ?3 at most
-- Index:      the primary key
DELETE FROM headwater_applied
WHERE subscription_id = ?1 AND first_offset IN (
    SELECT first_offset FROM headwater_applied
    WHERE subscription_id = ?1 AND first_offset < ?2 AND last_offset < ?2
    ORDER BY first_offset
    LIMIT ?3
)
