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
-- Purpose:    Topics by name, with the state of their logs.
-- Parameters: ?1 name, ?2 part of the name, ?3 after this name (each NULL for any), ?4 at most (-1: all)
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
        SELECT reached.watermark FROM headwater_watermark AS reached
        WHERE reached.topic_id = topic.topic_id
    ),
    topic.tracked_until, topic.change_until,
    (
        SELECT record.row_key & 8796093022207 FROM headwater_completion_record AS record
        WHERE topic.change_until IS NOT NULL
            AND record.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207
        ORDER BY record.row_key
        LIMIT 1
    ),
    (
        SELECT count(*) FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = topic.topic_id AND subscription.state <> 'cancelled'
            AND (subscription.state <> 'dead' OR topic.semantics = 'queue')
    ),
    (
        SELECT min(topic.heartbeat_timeout_ms, coalesce(min(subscription.heartbeat_timeout_ms), topic.heartbeat_timeout_ms))
        FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = topic.topic_id AND subscription.state <> 'cancelled'
    )
FROM headwater_topic AS topic
WHERE (?1 IS NULL OR topic.name = ?1)
    AND (?2 IS NULL OR instr(lower(topic.name), lower(?2)) > 0)
    AND (?3 IS NULL OR topic.name > ?3)
ORDER BY topic.name
LIMIT ?4

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

-- name: contents
-- Purpose:    What a topic holds beside its messages: scheduled messages, groups that are not cancelled, live leases, dead letters.
-- Parameters: ?1 topic_id, ?2 now_ms
-- Index:      the primary key; headwater_subscription_group; headwater_outstanding_leased, over what is in flight;
--             headwater_dead_letter_of
SELECT topic.scheduled,
    (SELECT count(*) FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = ?1 AND subscription.state <> 'cancelled'),
    (SELECT count(DISTINCT leased.token) FROM headwater_subscription AS subscription
        JOIN headwater_outstanding AS leased ON leased.subscription_id = subscription.subscription_id
        WHERE subscription.topic_id = ?1 AND leased.owner IS NOT NULL AND leased.due_at_ms > ?2),
    (SELECT count(*) FROM headwater_subscription AS subscription
        JOIN headwater_dead_letter AS letter ON letter.subscription_id = subscription.subscription_id
        WHERE subscription.topic_id = ?1)
FROM headwater_topic AS topic
WHERE topic.topic_id = ?1

-- name: served
-- Purpose:    The groups of a topic that processes serve, by name, and by how many.
-- Parameters: ?1 topic_id, ?2 since when a process is not silent
-- Index:      the primary keys; the subscriptions of the topic
SELECT subscription.group_name, count(*)
FROM headwater_subscription AS subscription
JOIN headwater_activity AS activity ON activity.subscription_id = subscription.subscription_id
JOIN headwater_owner AS owner ON owner.owner = activity.owner
WHERE subscription.topic_id = ?1 AND subscription.state <> 'cancelled' AND activity.serving = 1 AND owner.seen_at_ms > ?2
GROUP BY subscription.subscription_id
ORDER BY subscription.group_name

-- name: subscriptions
-- Purpose:    All subscriptions of a topic, cancelled ones too.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
SELECT subscription_id
FROM headwater_subscription
WHERE topic_id = ?1
ORDER BY subscription_id

-- name: delete
-- Purpose:    Deletes a topic. What it stored is removed in steps.
-- Parameters: ?1 topic_id
-- Index:      the primary key
DELETE FROM headwater_topic
WHERE topic_id = ?1

-- name: deleted
-- Purpose:    A deleted topic whose rows are still being removed, and the ids of its subscriptions.
-- Parameters: none
-- Index:      the primary key, its first entry
SELECT topic_id, subscription_ids
FROM headwater_deleted_topic
ORDER BY topic_id
LIMIT 1

-- name: deleted_end
-- Purpose:    Ends the removal of a deleted topic.
-- Parameters: ?1 topic_id
-- Index:      the primary key
DELETE FROM headwater_deleted_topic
WHERE topic_id = ?1

-- name: deleted_note
-- Purpose:    Records a deleted topic, so that its rows are removed also after a crash.
-- Parameters: ?1 topic_id, ?2 the ids of its subscriptions as a JSON array
-- Index:      the primary key
INSERT INTO headwater_deleted_topic (topic_id, subscription_ids)
VALUES (?1, ?2)

-- name: remove_acks
-- Purpose:    Deletes some entries of the ack log of a deleted topic.
-- Parameters: ?1 topic_id, ?2 at most
-- Index:      headwater_ack_log_offsets
DELETE FROM headwater_ack_log
WHERE ack_key IN (SELECT ack_key FROM headwater_ack_log WHERE topic_id = ?1 LIMIT ?2)

-- name: remove_ages
-- Purpose:    Deletes the age history of a deleted topic.
-- Parameters: ?1 topic_id, ?2 at most
-- Index:      the primary key
DELETE FROM headwater_age
WHERE topic_id = ?1
    AND elapsed_ms IN (SELECT elapsed_ms FROM headwater_age WHERE topic_id = ?1 ORDER BY elapsed_ms LIMIT ?2)

-- name: remove_dedup
-- Purpose:    Deletes some dedup keys of a deleted topic.
-- Parameters: ?1 topic_id, ?2 at most
-- Index:      the primary key
DELETE FROM headwater_dedup
WHERE topic_id = ?1
    AND dedup_key IN (SELECT dedup_key FROM headwater_dedup WHERE topic_id = ?1 ORDER BY dedup_key LIMIT ?2)

-- name: remove_watermarks
-- Purpose:    Deletes the watermark history of a deleted topic.
-- Parameters: ?1 topic_id, ?2 at most
-- Index:      the primary key
DELETE FROM headwater_watermark_history
WHERE topic_id = ?1
    AND noted_at_ms IN (SELECT noted_at_ms FROM headwater_watermark_history WHERE topic_id = ?1 ORDER BY noted_at_ms LIMIT ?2)

-- name: some_scheduled
-- Purpose:    Some scheduled messages of a deleted topic, and the lengths of their payloads.
-- Parameters: ?1 topic_id, ?2 at most
-- Index:      headwater_schedule_due, its first entries
SELECT schedule_id, length(payload)
FROM headwater_schedule
WHERE topic_id = ?1
ORDER BY deliver_at_ms
LIMIT ?2
