-- Purpose:    Deletes some of the dead letters of a subscription that is removed.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      headwater_dead_letter_of, its first entries; the primary key
DELETE FROM headwater_dead_letter
WHERE dead_letter_key IN (
    SELECT dead_letter_key FROM headwater_dead_letter INDEXED BY headwater_dead_letter_of
    WHERE subscription_id = ?1
    ORDER BY dead_letter_key
    LIMIT ?2
)
