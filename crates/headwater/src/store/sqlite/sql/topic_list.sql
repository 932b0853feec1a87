-- Purpose:    All topics by name, with what can be seen of their logs.
-- Parameters: none
-- Index:      the unique index on name for the order; headwater_schedule_due and the unique index on
--             (topic_id, group_name) for the counts
SELECT topic.topic_id, topic.name, topic.semantics, topic.lease_ms, topic.max_attempts, topic.backoff_initial_ms,
    topic.backoff_max_ms, topic.ordering, topic.lanes, topic.payload_bytes_max, topic.dedup_window_ms,
    topic.gap_patience_ms, topic.last_offset,
    (SELECT count(*) FROM headwater_schedule AS schedule WHERE schedule.topic_id = topic.topic_id),
    (SELECT count(*) FROM headwater_subscription AS subscription WHERE subscription.topic_id = topic.topic_id)
FROM headwater_topic AS topic
ORDER BY topic.name
