-- Purpose:    The range of what is set in the records that is one too many for a step that begins at an offset.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset, ?4 how many a step may meet
-- Index:      the primary key, as many entries
SELECT first_offset
FROM headwater_applied
WHERE subscription_id = ?1 AND first_offset BETWEEN ?2 AND ?3
ORDER BY first_offset
LIMIT 1 OFFSET ?4
