-- Purpose:    An owner seen in the future was seen by a clock that was ahead: it counts as seen now.
-- Parameters: ?1 now_ms
-- Index:      headwater_owner_seen: no entry, usually
UPDATE headwater_owner INDEXED BY headwater_owner_seen
SET seen_at_ms = ?1
WHERE seen_at_ms > ?1
