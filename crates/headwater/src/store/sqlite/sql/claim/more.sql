-- Purpose:    Whether a subscription has something to hand out.
-- Parameters: ?1 subscription_id, ?2 head, ?3 now_ms
-- Index:      the primary key of the cursors; headwater_range_leased and headwater_range_waiting
SELECT EXISTS (
    SELECT 1 FROM headwater_cursor WHERE subscription_id = ?1 AND next_offset <= ?2
) OR EXISTS (
    SELECT 1 FROM headwater_range AS leased INDEXED BY headwater_range_leased
    WHERE leased.subscription_id = ?1 AND leased.owner IS NOT NULL AND leased.due_at_ms <= ?3
) OR EXISTS (
    SELECT 1 FROM headwater_range AS waiting INDEXED BY headwater_range_waiting
    WHERE waiting.subscription_id = ?1 AND waiting.owner IS NULL AND waiting.due_at_ms <= ?3 AND waiting.parked = 0
)
