-- Purpose:    Cuts off what outstanding ranges have below an offset.
-- Parameters: ?1 subscription_id, ?2 offset
-- Index:      a scan of the outstanding ranges: it happens rarely
UPDATE headwater_range
SET first_offset = ?2
WHERE subscription_id = ?1 AND first_offset < ?2 AND last_offset >= ?2
