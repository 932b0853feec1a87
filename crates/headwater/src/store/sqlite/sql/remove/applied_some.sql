-- Purpose:    Deletes some of the place in the records of a subscription that is removed.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      the primary key, its first entries
DELETE FROM headwater_applied
WHERE subscription_id = ?1 AND first_offset IN (
    SELECT first_offset FROM headwater_applied
    WHERE subscription_id = ?1
    ORDER BY first_offset
    LIMIT ?2
)
