-- Purpose:    The offsets of a subscription whose completion is set in the records.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
SELECT first_offset, last_offset
FROM headwater_applied
WHERE subscription_id = ?1
ORDER BY first_offset
