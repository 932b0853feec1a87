-- name: ages
-- Purpose:    The messages of a range with the times that retention needs, and the lengths of their payloads.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary keys
SELECT message.row_key, message.created_at_ms, record.completed_at_ms, length(message.payload)
FROM headwater_message AS message
LEFT JOIN headwater_completion_record AS record ON record.row_key = message.row_key
WHERE message.row_key BETWEEN ?1 AND ?2
ORDER BY message.row_key

-- name: append
-- Purpose:    Appends one message.
-- Parameters: ?1 row_key, ?2 created_at_ms, ?3 message_id, ?4 key, ?5 type, ?6 content_type, ?7 headers,
--             ?8 correlation_id, ?9 payload
-- Index:      the primary key, at its end
INSERT INTO headwater_message (
    row_key, created_at_ms, message_id, key, type, content_type, headers, correlation_id, payload
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)

-- name: append_scheduled
-- Purpose:    Copies one scheduled message into the log.
-- Parameters: ?1 schedule_id, ?2 row_key, ?3 now_ms
-- Index:      the primary keys
INSERT INTO headwater_message (
    row_key, created_at_ms, message_id, key, type, content_type, headers, correlation_id, payload
)
SELECT ?2, ?3, message_id, key, type, content_type, headers, correlation_id, payload
FROM headwater_schedule
WHERE schedule_id = ?1

-- name: bounds
-- Purpose:    The first and the last stored message of a topic.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key of the log: both ends
SELECT
    (SELECT row_key FROM headwater_message WHERE row_key BETWEEN ?1 AND ?2 ORDER BY row_key LIMIT 1),
    (SELECT row_key FROM headwater_message WHERE row_key BETWEEN ?1 AND ?2 ORDER BY row_key DESC LIMIT 1)

-- name: bury
-- Purpose:    Copies a message to the dead letters.
-- Parameters: ?1 row_key, ?2 dead_letter_id, ?3 subscription_id, ?4 error, ?5 attempts, ?6 now_ms, ?7 owner
-- Index:      the primary key of the log
INSERT INTO headwater_dead_letter (
    dead_letter_id, subscription_id, message_offset, message_id, key, type, content_type, headers, correlation_id,
    created_at_ms, error, attempts, buried_at_ms, parked_by, payload
)
SELECT ?2, ?3, row_key & 8796093022207, message_id, key, type, content_type, headers, correlation_id,
    created_at_ms, ?4, ?5, ?6, ?7, payload
FROM headwater_message
WHERE row_key = ?1

-- name: count
-- Purpose:    How many messages are stored in a range, and the first and last of them.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key of the log, over the range
SELECT count(*), min(row_key), max(row_key)
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2

-- name: count_dead_letters
-- Purpose:    Of a selection of dead letters, how many have their message in the log, and how many do not.
-- Parameters: ?1 subscription_id, ?2 ids as a JSON array of hex, ?3 key, ?4 type, ?5 part of the error, ?6 buried from, ?7 buried
--             before (each NULL for any)
-- Index:      headwater_dead_letter_of; the primary keys
SELECT count(message.row_key), count(*) - count(message.row_key)
FROM headwater_dead_letter AS letter
JOIN headwater_subscription AS subscription ON subscription.subscription_id = letter.subscription_id
LEFT JOIN headwater_message AS message ON message.row_key = (subscription.topic_id << 43) | letter.message_offset
WHERE letter.subscription_id = ?1
    AND (?2 IS NULL OR lower(hex(letter.dead_letter_id)) IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR letter.key = ?3)
    AND (?4 IS NULL OR letter.type = ?4)
    AND (?5 IS NULL OR instr(letter.error, ?5) > 0)
    AND (?6 IS NULL OR letter.buried_at_ms >= ?6)
    AND (?7 IS NULL OR letter.buried_at_ms < ?7)

-- name: fetch
-- Purpose:    The messages of a closed range; for payloads above a size only their length, which needs none of their pages.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 largest payload that is returned
-- Index:      the primary key of the log: one seek, then neighbours
SELECT row_key, message_id, key, type, CASE WHEN length(payload) > ?3 THEN length(payload) ELSE payload END,
    content_type, headers, correlation_id, created_at_ms
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key

-- name: first
-- Purpose:    The first stored message at or above an offset: its key and time.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key of the log
SELECT row_key, created_at_ms
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key
LIMIT 1

-- name: head
-- Purpose:    The last offset of a topic.
-- Parameters: ?1 topic_id
-- Index:      the primary key
SELECT last_offset
FROM headwater_topic
WHERE topic_id = ?1

-- name: keys
-- Purpose:    The ids and keys of the messages of a range, which determine their lanes and name them when they are buried.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key of the log
SELECT row_key, message_id, key
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key

-- name: message_id
-- Purpose:    The id of one message: distinguishes one history of the log from another.
-- Parameters: ?1 row_key
-- Index:      the primary key of the log
SELECT message_id
FROM headwater_message
WHERE row_key = ?1

-- name: newest
-- Purpose:    A small read: the newest message of the last topic.
-- Parameters: none
-- Index:      the last entry of the log's primary key
SELECT length(payload)
FROM headwater_message
ORDER BY row_key DESC
LIMIT 1

-- name: record
-- Purpose:    Creates the completion records of a range of messages with the same required and done groups.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 required, ?4 completed, ?5 completed_at_ms
-- Index:      the primary keys
INSERT OR IGNORE INTO headwater_completion_record (row_key, required, completed, completed_at_ms)
SELECT row_key, ?3, ?4, ?5
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2

-- name: remove
-- Purpose:    Removes a range of messages.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key of the log
DELETE FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2

-- name: stored
-- Purpose:    The stored messages of a range of offsets, and the lengths of their payloads.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 at most
-- Index:      the primary key of the log
SELECT row_key, length(payload)
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key
LIMIT ?3
