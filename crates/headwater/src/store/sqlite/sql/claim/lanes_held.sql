-- Purpose:    The lanes somebody holds now.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      headwater_range_leased, over the live leases only
SELECT DISTINCT lane
FROM headwater_range INDEXED BY headwater_range_leased
WHERE subscription_id = ?1 AND owner IS NOT NULL AND due_at_ms > ?2 AND lane IS NOT NULL
