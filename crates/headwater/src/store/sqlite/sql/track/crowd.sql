-- Purpose:    The waiting range that is one too many for a step that begins at an offset.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset, ?4 how many a step may meet
-- Index:      headwater_range_place, as many entries
SELECT first_offset
FROM headwater_range INDEXED BY headwater_range_place
WHERE subscription_id = ?1 AND owner IS NULL AND first_offset BETWEEN ?2 AND ?3
ORDER BY first_offset
LIMIT 1 OFFSET ?4
