-- Purpose:    A topic as upkeep sees it.
-- Parameters: ?1 topic_id
-- Index:      the primary key
SELECT name, tracking, last_offset, first_offset, zero_until, zero_from, tracked_until, change_until,
    message_retention_ms, max_retention_ms, zero_subscription_retention_ms, bits_used, removed
FROM headwater_topic
WHERE topic_id = ?1
