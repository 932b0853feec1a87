-- Purpose:    What a subscription has handed out and is not done, in numbers: lowest offset, offsets, ranges leased
--             and waiting, offsets in flight and to be retried.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      headwater_range_leased, headwater_range_waiting: every row is in one of them
SELECT min(first_offset), coalesce(sum(last_offset - first_offset + 1), 0),
    coalesce(sum(owner IS NOT NULL AND due_at_ms > ?2), 0),
    coalesce(sum(owner IS NULL OR due_at_ms <= ?2), 0),
    coalesce(sum(CASE WHEN owner IS NOT NULL AND due_at_ms > ?2 THEN last_offset - first_offset + 1 END), 0),
    coalesce(sum(CASE WHEN owner IS NULL AND parked = 0 AND attempts > 0 THEN last_offset - first_offset + 1 END), 0)
FROM (
    SELECT first_offset, last_offset, owner, due_at_ms, parked, attempts
    FROM headwater_range
    WHERE subscription_id = ?1 AND owner IS NOT NULL
    UNION ALL
    SELECT first_offset, last_offset, owner, due_at_ms, parked, attempts
    FROM headwater_range
    WHERE subscription_id = ?1 AND owner IS NULL
)
