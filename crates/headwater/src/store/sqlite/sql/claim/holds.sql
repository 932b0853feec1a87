-- Purpose:    Whether an owner holds a live lease of a subscription.
-- Parameters: ?1 subscription_id, ?2 owner, ?3 now_ms
-- Index:      headwater_range_leased, over the live leases only
SELECT EXISTS (
    SELECT 1 FROM headwater_range INDEXED BY headwater_range_leased
    WHERE subscription_id = ?1 AND owner IS NOT NULL AND due_at_ms > ?3 AND owner = ?2
)
