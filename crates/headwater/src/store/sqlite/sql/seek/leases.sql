-- Purpose:    How many leases of a subscription live.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      headwater_range_leased, over the live leases only
SELECT count(DISTINCT token)
FROM headwater_range INDEXED BY headwater_range_leased
WHERE subscription_id = ?1 AND owner IS NOT NULL AND due_at_ms > ?2
