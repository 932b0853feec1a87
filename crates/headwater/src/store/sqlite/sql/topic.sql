-- name: create
-- Purpose:    Creates a topic.
-- Parameters: ?1 name, ?2 now_ms, ?3 settings as JSON
-- Index:      the unique index on name, to refuse a second one
INSERT INTO headwater_topic (name, created_at_ms, settings)
VALUES (?1, ?2, ?3)

-- name: topic_range
-- Purpose:    What maintenance needs of a topic.
-- Parameters: ?1 topic_id
-- Index:      the primary key
SELECT name, tracking, last_offset, first_offset, zero_until, zero_from, tracked_until, change_until,
    message_retention_ms, max_retention_ms, zero_subscription_retention_ms, bits_used, removed
FROM headwater_topic
WHERE topic_id = ?1

-- name: get
-- Purpose:    A topic by its name.
-- Parameters: ?1 name
-- Index:      the unique index on name
SELECT topic_id, name, settings
FROM headwater_topic
WHERE name = ?1

-- name: list
-- Purpose:    All topics by name, with the state of their logs. The watermark is the lowest floor of the subscriptions that
--             count. Without any it stays: dead groups hold it, and messages published since are above it.
-- Parameters: none
-- Index:      the unique index on name for the order; headwater_subscription_group for the count; the
--             primary key of the records; headwater_outstanding_leased, over what is in flight, and headwater_outstanding_place, its
--             first entry, for the floors
SELECT topic.topic_id, topic.name, topic.settings, topic.last_offset,
    topic.scheduled,
    (
        SELECT count(*) FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = topic.topic_id AND subscription.state <> 'cancelled'
    ),
    topic.first_offset,
    (
        SELECT coalesce(
            min(place.floor) FILTER (WHERE place.state <> 'dead' OR topic.semantics = 'queue'),
            min(coalesce(min(place.floor), 9223372036854775807), topic.zero_from - 1)
        )
        FROM (
            SELECT subscription.state, min(
            (
                SELECT min(cursor.next_offset) FROM headwater_cursor AS cursor
                WHERE cursor.subscription_id = subscription.subscription_id
            ),
            coalesce(
                (
                    SELECT min(leased.first_offset) FROM headwater_outstanding AS leased INDEXED BY headwater_outstanding_leased
                    WHERE leased.subscription_id = subscription.subscription_id AND leased.owner IS NOT NULL
                ),
                9223372036854775807
            ),
            coalesce(
                (
                    SELECT min(waiting.first_offset) FROM headwater_outstanding AS waiting INDEXED BY headwater_outstanding_place
                    WHERE waiting.subscription_id = subscription.subscription_id AND waiting.owner IS NULL
                ),
                9223372036854775807
            )
            ) - 1 AS floor
            FROM headwater_subscription AS subscription
            WHERE subscription.topic_id = topic.topic_id AND subscription.state <> 'cancelled'
        ) AS place
    ),
    topic.tracked_until, topic.change_until,
    (
        SELECT record.row_key & 8796093022207 FROM headwater_completion_record AS record
        WHERE topic.change_until IS NOT NULL
            AND record.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207
        ORDER BY record.row_key
        LIMIT 1
    )
FROM headwater_topic AS topic
ORDER BY topic.name

-- name: settings
-- Purpose:    The settings of a topic as they are stored.
-- Parameters: ?1 topic_id
-- Index:      the primary key
SELECT settings
FROM headwater_topic
WHERE topic_id = ?1

-- name: store
-- Purpose:    Changes the settings of a topic.
-- Parameters: ?1 topic_id, ?2 settings as JSON
-- Index:      the primary key
UPDATE headwater_topic
SET settings = ?2
WHERE topic_id = ?1
