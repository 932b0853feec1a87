-- Purpose:    The delayed messages of a topic that are due, in the order they enter the log.
-- Parameters: ?1 topic_id, ?2 now_ms, ?3 at most
-- Index:      headwater_schedule_due, whose entries end in schedule_id
SELECT schedule_id, message_id, dedup_key
FROM headwater_schedule
WHERE topic_id = ?1 AND deliver_at_ms <= ?2
ORDER BY deliver_at_ms, schedule_id
LIMIT ?3
