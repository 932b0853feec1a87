-- Purpose:    What a subscription has handed out and is not done, in numbers: lowest offset, offsets, ranges leased
--             and waiting, offsets in flight and to be retried. What waits is not counted here: triggers keep its numbers.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      the primary key; headwater_range_leased, over what is in flight; headwater_range_place, its first entry
SELECT min(coalesce(leased.lowest, 9223372036854775807), coalesce((
        SELECT min(waiting.first_offset) FROM headwater_range AS waiting INDEXED BY headwater_range_place
        WHERE waiting.subscription_id = ?1 AND waiting.owner IS NULL
    ), 9223372036854775807)),
    leased.offsets + subscription.waiting_offsets, leased.live, leased.expired + subscription.waiting,
    leased.in_flight, subscription.retrying_offsets
FROM headwater_subscription AS subscription
JOIN (
    SELECT min(first_offset) AS lowest, coalesce(sum(last_offset - first_offset + 1), 0) AS offsets,
        coalesce(sum(due_at_ms > ?2), 0) AS live, coalesce(sum(due_at_ms <= ?2), 0) AS expired,
        coalesce(sum(iif(due_at_ms > ?2, last_offset - first_offset + 1, 0)), 0) AS in_flight
    FROM headwater_range INDEXED BY headwater_range_leased
    WHERE subscription_id = ?1 AND owner IS NOT NULL
) AS leased
WHERE subscription.subscription_id = ?1
