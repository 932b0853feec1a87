-- Purpose:    The owners that have been silent for too long.
-- Parameters: ?1 the last seen_at_ms that is too long ago, plus 1
-- Index:      headwater_owner_seen: its first entry, while nobody is dead
SELECT owner
FROM headwater_owner
WHERE seen_at_ms < ?1
ORDER BY seen_at_ms
