-- Purpose:    The topics with delayed messages that are due.
-- Parameters: ?1 now_ms
-- Index:      headwater_schedule_due, one look per topic
SELECT topic.topic_id, topic.last_offset
FROM headwater_topic AS topic
WHERE EXISTS (
    SELECT 1 FROM headwater_schedule AS schedule
    WHERE schedule.topic_id = topic.topic_id AND schedule.deliver_at_ms <= ?1
)
