-- Purpose:    Deletes some of what was touched of a subscription that is removed.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      the primary key, its first entries
DELETE FROM headwater_touched
WHERE subscription_id = ?1 AND (first_offset, token) IN (
    SELECT first_offset, token FROM headwater_touched
    WHERE subscription_id = ?1
    ORDER BY first_offset, token
    LIMIT ?2
)
