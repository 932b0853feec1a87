-- name: cancel
-- Purpose:    Removes a scheduled message; returns its time and dedup key.
-- Parameters: ?1 topic_id, ?2 message_id
-- Index:      headwater_schedule_message
DELETE FROM headwater_schedule
WHERE topic_id = ?1 AND message_id = ?2
RETURNING deliver_at_ms, dedup_key

-- name: forget_dedup
-- Purpose:    Removes the dedup key of a cancelled message, unless a later message has it.
-- Parameters: ?1 topic_id, ?2 dedup_key, ?3 message_id
-- Index:      the primary key
DELETE FROM headwater_dedup
WHERE topic_id = ?1 AND dedup_key = ?2 AND message_id = ?3

-- name: list
-- Purpose:    The scheduled messages of a topic, by their time; without their payloads.
-- Parameters: ?1 topic_id, ?2 at most, ?3 after this time and ?4 number
-- Index:      headwater_schedule_due, whose entries end in schedule_id
SELECT deliver_at_ms, message_id, key, type, content_type, headers, correlation_id, dedup_key, length(payload), schedule_id
FROM headwater_schedule
WHERE topic_id = ?1 AND (deliver_at_ms, schedule_id) > (?3, ?4)
ORDER BY deliver_at_ms, schedule_id
LIMIT ?2

-- name: reschedule
-- Purpose:    Moves a scheduled message to another time.
-- Parameters: ?1 topic_id, ?2 message_id, ?3 deliver_at_ms
-- Index:      headwater_schedule_message
UPDATE headwater_schedule
SET deliver_at_ms = ?3
WHERE topic_id = ?1 AND message_id = ?2

-- name: time
-- Purpose:    When a scheduled message is due.
-- Parameters: ?1 topic_id, ?2 message_id
-- Index:      headwater_schedule_message
SELECT min(deliver_at_ms)
FROM headwater_schedule
WHERE topic_id = ?1 AND message_id = ?2

-- name: wake
-- Purpose:    Lets waiters of other processes claim again, to get the new due time.
-- Parameters: ?1 topic_id
-- Index:      the primary key
UPDATE headwater_topic
SET wakes = wakes + 1
WHERE topic_id = ?1
