-- Purpose:    All a claim must know of one subscription, in one look.
-- Parameters: ?1 subscription_id, ?2 owner, ?3 now_ms
-- Index:      primary keys; headwater_range_leased, headwater_range_waiting, headwater_schedule_due: their first entry
--             each; headwater_range_suspect, which holds only ranges whose holder vanished
SELECT subscription.topic_id, subscription.lanes,
    coalesce(subscription.lease_ms, topic.lease_ms), coalesce(subscription.max_attempts, topic.max_attempts),
    topic.last_offset, cursor.next_offset,
    (
        SELECT leased.due_at_ms FROM headwater_range AS leased INDEXED BY headwater_range_leased
        WHERE leased.subscription_id = ?1 AND leased.owner IS NOT NULL
        ORDER BY leased.due_at_ms
        LIMIT 1
    ),
    (
        SELECT waiting.due_at_ms FROM headwater_range AS waiting INDEXED BY headwater_range_waiting
        WHERE waiting.subscription_id = ?1 AND waiting.owner IS NULL
        ORDER BY waiting.due_at_ms
        LIMIT 1
    ),
    (
        SELECT schedule.deliver_at_ms FROM headwater_schedule AS schedule
        WHERE schedule.topic_id = subscription.topic_id
        ORDER BY schedule.deliver_at_ms
        LIMIT 1
    ),
    (
        SELECT max(held.due_at_ms) FROM headwater_range AS held INDEXED BY headwater_range_suspect
        WHERE held.subscription_id = ?1 AND held.suspect = 1 AND held.owner = ?2 AND held.due_at_ms > ?3
    ),
    subscription.status
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
JOIN headwater_cursor AS cursor ON cursor.subscription_id = subscription.subscription_id AND cursor.lane = 0
WHERE subscription.subscription_id = ?1
