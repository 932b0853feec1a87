-- name: auto_create
-- Purpose:    Stores whether publishing creates topics.
-- Parameters: ?1 1 or 0
-- Index:      the primary key
UPDATE headwater_meta SET value = ?1
WHERE key = 'auto_create'

-- name: dedup_find
-- Purpose:    The first message of a dedup key within its window. A key that expires beyond the longest window was stored while
--             the clock was ahead, and has expired.
-- Parameters: ?1 topic_id, ?2 dedup_key, ?3 now_ms, ?4 the end of the longest window
-- Index:      the primary key
SELECT message_id, message_offset
FROM headwater_dedup
WHERE topic_id = ?1 AND dedup_key = ?2 AND expires_at_ms > ?3 AND expires_at_ms <= ?4

-- name: dedup_shorten
-- Purpose:    Shortens the dedup keys of a topic to a shorter window. A key that expires beyond the longer window was stored
--             while the clock was ahead, and stays expired.
-- Parameters: ?1 topic_id, ?2 the end of the shorter window, ?3 the end of the longer one
-- Index:      the primary key, by its first column
UPDATE headwater_dedup
SET expires_at_ms = ?2
WHERE topic_id = ?1 AND expires_at_ms > ?2 AND expires_at_ms <= ?3

-- name: dedup_store
-- Purpose:    Stores a dedup key; replaces one whose window is over.
-- Parameters: ?1 topic_id, ?2 dedup_key, ?3 message_id, ?4 message_offset or NULL, ?5 expires_at_ms
-- Index:      the primary key
INSERT OR REPLACE INTO headwater_dedup (topic_id, dedup_key, message_id, message_offset, expires_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5)

-- name: head
-- Purpose:    Moves a topic's head to the last appended message, and wakes waiters of other processes.
-- Parameters: ?1 topic_id, ?2 last_offset, ?3 number to add to "wakes"
-- Index:      the primary key
UPDATE headwater_topic
SET last_offset = ?2, wakes = wakes + ?3
WHERE topic_id = ?1

-- name: log
-- Purpose:    What a publish needs of its topic. It is blocked if the topic blocks writes while no subscription counts.
-- Parameters: ?1 name
-- Index:      the unique index on name; headwater_subscription_group, only for a topic that blocks
SELECT topic.topic_id, topic.last_offset, topic.payload_bytes_max, topic.dedup_window_ms,
    CASE WHEN topic.block_writes = 1 AND topic.semantics = 'pub_sub' THEN NOT EXISTS (
        SELECT 1 FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = topic.topic_id AND subscription.state <> 'cancelled'
            AND subscription.state IN ('active', 'paused')
    ) ELSE 0 END
FROM headwater_topic AS topic
WHERE topic.name = ?1

-- name: schedule
-- Purpose:    Stores a scheduled message.
-- Parameters: ?1 topic_id, ?2 deliver_at_ms, ?3 message_id, ?4 key, ?5 type, ?6 content_type, ?7 headers,
--             ?8 correlation_id, ?9 dedup_key, ?10 payload
-- Index:      headwater_schedule_due and headwater_schedule_message get an entry
INSERT INTO headwater_schedule (
    topic_id, deliver_at_ms, message_id, key, type, content_type, headers, correlation_id, dedup_key, payload
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
