-- Purpose:    Forgets outstanding ranges wholly below an offset.
-- Parameters: ?1 subscription_id, ?2 offset, ?3 the latest due_at_ms of leases that go too
-- Index:      a scan of the outstanding ranges: it happens rarely
DELETE FROM headwater_range
WHERE subscription_id = ?1 AND last_offset < ?2 AND (owner IS NULL OR due_at_ms <= ?3)
