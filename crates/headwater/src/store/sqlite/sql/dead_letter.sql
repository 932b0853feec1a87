-- name: all
-- Purpose:    Dead letters of every source, oldest first.
-- Parameters: $1 source (subscription, outbox, command), $2 ids as a JSON array of text, $3 key, $4 name, $5 part of the error, $6 topic,
--             $7 group, $8 part of the error, name, key or command id in any case (each NULL for any), $9 after this place (NULL for the
--             first ones; its id, $10, is not needed here), $11 whether with payloads, $12 at most
-- Index:      the primary key, in its order
SELECT lower(substr(hex(dead.dead_letter_id), 1, 8) || '-' || substr(hex(dead.dead_letter_id), 9, 4) || '-' || substr(hex(dead.dead_letter_id), 13, 4)
        || '-' || substr(hex(dead.dead_letter_id), 17, 4) || '-' || substr(hex(dead.dead_letter_id), 21)) AS dead_letter_id,
    coalesce(dead.source, 'subscription') AS source, coalesce(dead.topic, topic.name) AS topic, subscription.group_name,
    dead.subscription_id, dead.message_offset, dead.outbox_id,
    coalesce(dead.command_id, lower(substr(hex(dead.message_id), 1, 8) || '-' || substr(hex(dead.message_id), 9, 4) || '-' || substr(hex(dead.message_id), 13, 4)
        || '-' || substr(hex(dead.message_id), 17, 4) || '-' || substr(hex(dead.message_id), 21))) AS command_id,
    dead.type AS name, dead.key, iif($11, dead.payload, x'') AS payload, length(dead.payload) AS payload_bytes, dead.content_type, dead.headers, dead.correlation_id,
    iif(dead.source IS NULL, 'FAILED', dead.failed_status) AS failed_status, dead.error_class, dead.error, dead.attempts, dead.parked_by,
    dead.created_at_ms * 1000 AS created_at_us, dead.buried_at_ms * 1000 AS parked_at_us, dead.dead_letter_key AS place
FROM headwater_dead_letter AS dead
LEFT JOIN headwater_subscription AS subscription ON subscription.subscription_id = dead.subscription_id
LEFT JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE ($1 IS NULL OR coalesce(dead.source, 'subscription') = $1)
    AND ($2 IS NULL OR lower(hex(dead.dead_letter_id)) IN (SELECT replace(value, '-', '') FROM json_each($2)))
    AND ($3 IS NULL OR dead.key = $3)
    AND ($4 IS NULL OR dead.type = $4)
    AND ($5 IS NULL OR instr(dead.error, $5) > 0)
    AND ($6 IS NULL OR coalesce(dead.topic, topic.name) = $6)
    AND ($7 IS NULL OR subscription.group_name = $7)
    AND ($8 IS NULL OR instr(lower(coalesce(dead.error, '') || char(10) || coalesce(dead.type, '') || char(10) || coalesce(dead.key, '') || char(10)
        || coalesce(dead.command_id, '')), lower($8)) > 0)
    AND ($9 IS NULL OR dead.dead_letter_key > $9)
ORDER BY dead.dead_letter_key
LIMIT $12

-- name: find
-- Purpose:    What a redrive needs of a dead letter.
-- Parameters: ?1 dead_letter_id
-- Index:      the unique index of dead_letter_id
SELECT dead_letter_key, source, outbox_id, command_id, topic, key, type, payload, content_type, headers, correlation_id
FROM headwater_dead_letter
WHERE dead_letter_id = ?1

-- name: keys
-- Purpose:    What a removal needs of a dead letter.
-- Parameters: ?1 dead_letter_id
-- Index:      the unique index of dead_letter_id
SELECT dead_letter_key, outbox_id
FROM headwater_dead_letter
WHERE dead_letter_id = ?1

-- name: known
-- Purpose:    What decides how dead letters of any source are redriven or deleted, oldest first.
-- Parameters: $1 ids as a JSON array of text
-- Index:      the unique index of dead_letter_id
SELECT lower(hex(dead_letter_id)) AS dead_letter_id, subscription_id, topic, length(payload) AS payload_bytes
FROM headwater_dead_letter
WHERE dead_letter_id IN (SELECT unhex(value, '-') FROM json_each($1))
ORDER BY dead_letter_key

-- name: list
-- Purpose:    The dead letters of a selection, oldest first.
-- Parameters: ?1 subscription_id, ?2 ids as a JSON array of hex, ?3 key, ?4 type, ?5 part of the error, ?6 buried from, ?7 buried
--             before (each NULL for any), ?8 at most
-- Index:      headwater_dead_letter_of
SELECT dead_letter_id, subscription_id, message_offset, message_id, key, type, payload, content_type, headers, error,
    attempts, buried_at_ms, correlation_id, created_at_ms
FROM headwater_dead_letter
WHERE subscription_id = ?1
    AND (?2 IS NULL OR lower(hex(dead_letter_id)) IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR key = ?3)
    AND (?4 IS NULL OR type = ?4)
    AND (?5 IS NULL OR instr(error, ?5) > 0)
    AND (?6 IS NULL OR buried_at_ms >= ?6)
    AND (?7 IS NULL OR buried_at_ms < ?7)
ORDER BY dead_letter_key
LIMIT ?8

-- name: newest
-- Purpose:    The newest dead letter of a subscription: later ones are not part of a redrive that begins now.
-- Parameters: ?1 subscription_id
-- Index:      headwater_dead_letter_of
SELECT coalesce(max(dead_letter_key), 0)
FROM headwater_dead_letter
WHERE subscription_id = ?1

-- name: of
-- Purpose:    The subscription of the dead letters.
-- Parameters: ?1 subscription_id
-- Index:      the primary keys
SELECT subscription.topic_id, subscription.lanes, subscription.state, topic.name, subscription.group_name
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.subscription_id = ?1

-- name: page
-- Purpose:    The next dead letters of a selection to redrive or purge, and the lengths of their payloads.
-- Parameters: ?1 subscription_id, ?2 ids as a JSON array of hex, ?3 key, ?4 type, ?5 part of the error, ?6 buried from, ?7 buried
--             before (each NULL for any), ?8 after this dead_letter_key, ?9 up to this one, ?10 at most
-- Index:      headwater_dead_letter_of
SELECT dead_letter_key, message_offset, message_id, key, length(payload)
FROM headwater_dead_letter
WHERE subscription_id = ?1
    AND (?2 IS NULL OR lower(hex(dead_letter_id)) IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR key = ?3)
    AND (?4 IS NULL OR type = ?4)
    AND (?5 IS NULL OR instr(error, ?5) > 0)
    AND (?6 IS NULL OR buried_at_ms >= ?6)
    AND (?7 IS NULL OR buried_at_ms < ?7)
    AND dead_letter_key > ?8
    AND dead_letter_key <= ?9
ORDER BY dead_letter_key
LIMIT ?10

-- name: park
-- Purpose:    Parks a command. The id is a random UUID (version 4).
-- Parameters: $1 command id, $2 name, $3 business key, $4 payload, $5 failed status, $6 error class, $7 error, $8 attempts, $9 parked by,
--             $10 topic, $11 headers, $12 now_ms
-- Index:      the primary key, at its end
INSERT INTO headwater_dead_letter (
    dead_letter_id, source, command_id, type, key, payload, failed_status, error_class, error, attempts, parked_by, topic, headers,
    created_at_ms, buried_at_ms
)
VALUES (
    CAST(randomblob(6) || substr(x'404142434445464748494a4b4c4d4e4f', 1 + (random() & 15), 1) || randomblob(1)
        || substr(CAST(x'808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f'
            || x'a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf' AS BLOB), 1 + (random() & 63), 1)
        || randomblob(7) AS BLOB),
    'command', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12
)
RETURNING lower(hex(dead_letter_id)) AS dead_letter_id

-- name: purge
-- Purpose:    Removes one dead letter.
-- Parameters: ?1 dead_letter_key
-- Index:      the primary key
DELETE FROM headwater_dead_letter
WHERE dead_letter_key = ?1
