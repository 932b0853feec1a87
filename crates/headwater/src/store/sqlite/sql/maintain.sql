-- name: forget_dedup
-- Purpose:    Deletes dedup keys whose window is over, a bounded number at a time.
-- Parameters: ?1 now_ms, ?2 at most
-- Index:      headwater_dedup_expiry
DELETE FROM headwater_dedup
WHERE (topic_id, dedup_key) IN (
    SELECT topic_id, dedup_key FROM headwater_dedup
    WHERE expires_at_ms <= ?1
    ORDER BY expires_at_ms
    LIMIT ?2
)

-- name: forget_inbox
-- Purpose:    Deletes inbox entries past their retention, a bounded number at a time.
-- Parameters: ?1 handled at or before, ?2 at most
-- Index:      headwater_inbox_handled
DELETE FROM headwater_inbox
WHERE (handler, message_id) IN (
    SELECT handler, message_id FROM headwater_inbox
    WHERE handled_at_ms <= ?1
    ORDER BY handled_at_ms
    LIMIT ?2
)

-- name: promote_dedup
-- Purpose:    Stores the offset of the message of a dedup key.
-- Parameters: ?1 topic_id, ?2 dedup_key, ?3 message_id, ?4 message_offset
-- Index:      the primary key
UPDATE headwater_dedup
SET message_offset = ?4
WHERE topic_id = ?1 AND dedup_key = ?2 AND message_id = ?3

-- name: promote_due
-- Purpose:    The scheduled messages of a topic that are due, in the order in which they are promoted.
-- Parameters: ?1 topic_id, ?2 now_ms, ?3 at most
-- Index:      headwater_schedule_due, whose entries end in schedule_id
SELECT schedule_id, message_id, dedup_key
FROM headwater_schedule
WHERE topic_id = ?1 AND deliver_at_ms <= ?2
ORDER BY deliver_at_ms, schedule_id
LIMIT ?3

-- name: promote_remove
-- Purpose:    Removes one promoted message from the schedule.
-- Parameters: ?1 schedule_id
-- Index:      the primary key
DELETE FROM headwater_schedule
WHERE schedule_id = ?1

-- name: promote_topics
-- Purpose:    The topics with scheduled messages that are due.
-- Parameters: ?1 now_ms
-- Index:      headwater_schedule_due, one search per topic
SELECT topic.topic_id, topic.last_offset
FROM headwater_topic AS topic
WHERE EXISTS (
    SELECT 1 FROM headwater_schedule AS schedule
    WHERE schedule.topic_id = topic.topic_id AND schedule.deliver_at_ms <= ?1
)
