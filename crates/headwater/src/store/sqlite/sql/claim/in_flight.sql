-- Purpose:    The offsets each live lease of a subscription spans.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      headwater_range_leased, over the live leases only; they are grouped by token
SELECT sum(last_offset - first_offset + 1)
FROM headwater_range INDEXED BY headwater_range_leased
WHERE subscription_id = ?1 AND owner IS NOT NULL AND due_at_ms > ?2
GROUP BY token
