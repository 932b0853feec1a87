-- name: applied_differs
-- Purpose:    Pending records whose bit of a counting group differs from headwater_applied.
-- Parameters: none
-- Index:      headwater_completion_record_pending for each subscription; the primary key of headwater_applied
SELECT subscription.subscription_id, record.row_key & 8796093022207, (record.completed >> subscription.bit) & 1
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
JOIN headwater_completion_record AS record
    ON record.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207
WHERE topic.tracking = 'reference_counting'
    AND (subscription.state IN ('active', 'paused')
        OR subscription.state = 'dead' AND topic.semantics = 'queue')
    AND record.completed_at_ms IS NULL
    AND (record.required >> subscription.bit) & 1
    AND (record.completed >> subscription.bit) & 1 <> coalesce((
        SELECT applied.last_offset >= record.row_key & 8796093022207 FROM headwater_applied AS applied
        WHERE applied.subscription_id = subscription.subscription_id
            AND applied.first_offset <= record.row_key & 8796093022207
        ORDER BY applied.first_offset DESC
        LIMIT 1
    ), 0)

-- name: backfill
-- Purpose:    Backfills without a subscription, outside their bounds, or open for a group that does not count.
-- Parameters: none
-- Index:      the backfills of the store, as many as subscriptions at most
SELECT backfill.subscription_id, backfill.state, backfill.first_offset, backfill.last_offset, backfill.checkpoint,
    backfill.error
FROM headwater_backfill AS backfill
LEFT JOIN headwater_subscription AS subscription ON subscription.subscription_id = backfill.subscription_id
LEFT JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.subscription_id IS NULL
    OR backfill.checkpoint NOT BETWEEN backfill.first_offset - 1 AND backfill.last_offset
    OR (backfill.state IN ('not_started', 'in_progress')
        AND (subscription.state = 'cancelled' OR subscription.state = 'dead' AND topic.semantics <> 'queue'))

-- name: beyond_next
-- Purpose:    Outstanding ranges at or above their cursor.
-- Parameters: none
-- Index:      the primary key of the cursors, once per range
SELECT part.subscription_id, part.lane, part.first_offset, part.last_offset, cursor.next_offset
FROM headwater_outstanding AS part
JOIN headwater_cursor AS cursor
    ON cursor.subscription_id = part.subscription_id AND cursor.lane = coalesce(part.lane, 0)
WHERE part.last_offset >= cursor.next_offset

-- name: cancelled_range
-- Purpose:    Leases of cancelled subscriptions. Waiting ranges may be left by a crash, and maintenance deletes them.
-- Parameters: none
-- Index:      a scan of outstanding ranges; the primary key
SELECT range.subscription_id, range.token, range.first_offset, range.last_offset
FROM headwater_outstanding AS range
JOIN headwater_subscription AS subscription ON subscription.subscription_id = range.subscription_id
WHERE subscription.state = 'cancelled' AND range.owner IS NOT NULL

-- name: epoch_changed
-- Purpose:    When an older copy was last restored into the open file, if that is not long ago.
-- Parameters: ?1 the earliest time that counts, in ms
-- Index:      the primary key
SELECT CAST(value AS INTEGER)
FROM headwater_meta
WHERE key = 'epoch_changed_at_ms' AND CAST(value AS INTEGER) > ?1

-- name: far_lease
-- Purpose:    Outstanding ranges that are due later than allowed: a clock was wrong when they were stored.
-- Parameters: ?1 the latest due_at_ms that is right
-- Index:      a scan of the outstanding ranges
SELECT subscription_id, token, first_offset, last_offset, due_at_ms
FROM headwater_outstanding
WHERE due_at_ms > ?1 AND due_at_ms < 9223372036854775807

-- name: first_offset
-- Purpose:    Topics whose first offset is above a stored message, or beyond the end of the log.
-- Parameters: none
-- Index:      the first entry of the log of each topic
SELECT topic_id, first_offset, lowest, last_offset
FROM (
    SELECT topic.topic_id, topic.first_offset, topic.last_offset,
        (
            SELECT min(message.row_key) & 8796093022207 FROM headwater_message AS message
            WHERE message.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207
        ) AS lowest
    FROM headwater_topic AS topic
)
WHERE first_offset > lowest OR first_offset > last_offset + 1 OR first_offset < 1

-- name: head_behind
-- Purpose:    Topics with a message stored above their last offset: the next publish would collide with it.
-- Parameters: none
-- Index:      the primary key of the log, at each topic's end
SELECT topic.topic_id, topic.last_offset,
    (
        SELECT message.row_key & 8796093022207 FROM headwater_message AS message
        WHERE message.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207
        ORDER BY message.row_key DESC
        LIMIT 1
    ) AS highest
FROM headwater_topic AS topic
WHERE highest > topic.last_offset

-- name: idle_bit
-- Purpose:    Subscriptions with a bit, or with something to release, in topics without completion records.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT subscription.subscription_id, subscription.topic_id
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE topic.tracking = 'offset_watermark' AND topic.change_until IS NULL
    AND (subscription.bit IS NOT NULL OR subscription.released_until IS NOT NULL)

-- name: kept_scheduled
-- Purpose:    Topics whose stored number of scheduled messages is wrong.
-- Parameters: none
-- Index:      headwater_schedule_due for each topic
SELECT topic.topic_id, topic.scheduled, count(schedule.schedule_id)
FROM headwater_topic AS topic
LEFT JOIN headwater_schedule AS schedule ON schedule.topic_id = topic.topic_id
GROUP BY topic.topic_id
HAVING topic.scheduled <> count(schedule.schedule_id)

-- name: kept_waiting
-- Purpose:    Subscriptions whose stored numbers of waiting ranges are wrong.
-- Parameters: none
-- Index:      headwater_outstanding_place for each subscription
SELECT subscription.subscription_id, subscription.waiting, count(waiting.token)
FROM headwater_subscription AS subscription
LEFT JOIN headwater_outstanding AS waiting
    ON waiting.subscription_id = subscription.subscription_id AND waiting.owner IS NULL
GROUP BY subscription.subscription_id
HAVING subscription.waiting <> count(waiting.token)
    OR subscription.waiting_offsets <> coalesce(sum(waiting.last_offset - waiting.first_offset + 1), 0)
    OR subscription.retrying_offsets <> coalesce(sum(
        iif(waiting.parked = 0 AND waiting.attempts > 0, waiting.last_offset - waiting.first_offset + 1, 0)
    ), 0)

-- name: malformed
-- Purpose:    Outstanding ranges that end before they begin, start below 1, or have impossible numbers.
-- Parameters: none
-- Index:      a scan of the outstanding ranges
SELECT subscription_id, token, first_offset, last_offset
FROM headwater_outstanding
WHERE first_offset > last_offset OR first_offset < 1 OR attempts < 0 OR token < 1

-- name: malformed_applied
-- Purpose:    Applied ranges that end before they begin, overlap, go beyond the records, or have no subscription.
-- Parameters: none
-- Index:      a scan of headwater_applied; the primary keys
SELECT applied.subscription_id, applied.first_offset, applied.last_offset
FROM headwater_applied AS applied
LEFT JOIN headwater_subscription AS subscription ON subscription.subscription_id = applied.subscription_id
LEFT JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE topic.topic_id IS NULL
    OR applied.first_offset > applied.last_offset
    OR applied.last_offset > max(topic.tracked_until, topic.first_offset - 1)
    OR EXISTS (
        SELECT 1 FROM headwater_applied AS other
        WHERE other.subscription_id = applied.subscription_id
            AND other.first_offset > applied.first_offset AND other.first_offset <= applied.last_offset
    )

-- name: malformed_record
-- Purpose:    Completion records whose sets contradict each other or their state.
-- Parameters: none
-- Index:      a scan of the records
SELECT row_key >> 43, row_key & 8796093022207, required, completed
FROM headwater_completion_record
WHERE completed & ~required <> 0
    OR (completed_at_ms IS NULL) <> (required & ~completed <> 0)

-- name: missing_bit
-- Purpose:    Subscriptions without a bit in topics with completion records.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT subscription.subscription_id, subscription.topic_id
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE topic.tracking = 'reference_counting' AND subscription.state <> 'cancelled' AND subscription.bit IS NULL

-- name: missing_cursor
-- Purpose:    Subscriptions with missing cursors.
-- Parameters: none
-- Index:      the primary key of the cursors
SELECT subscription.subscription_id, subscription.lanes,
    (
        SELECT count(*) FROM headwater_cursor AS cursor
        WHERE cursor.subscription_id = subscription.subscription_id
    ) AS cursors
FROM headwater_subscription AS subscription
WHERE cursors <> max(subscription.lanes, 1)

-- name: missing_message
-- Purpose:    Topics with fewer messages than were published and not removed.
-- Parameters: none
-- Index:      the primary key of the log, all of it
SELECT topic_id, expected, stored
FROM (
    SELECT topic.topic_id, topic.last_offset - topic.removed AS expected,
        (
            SELECT count(*) FROM headwater_message AS message
            WHERE message.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207
        ) AS stored
    FROM headwater_topic AS topic
)
WHERE stored < expected

-- name: missing_record
-- Purpose:    Messages without a completion record that should have one.
-- Parameters: none
-- Index:      the primary keys, from the first message of the topic to the last recorded one
SELECT topic.topic_id, message.row_key & 8796093022207
FROM headwater_topic AS topic
JOIN headwater_message AS message
    ON message.row_key BETWEEN (topic.topic_id << 43) | topic.first_offset AND (topic.topic_id << 43) | topic.tracked_until
WHERE topic.tracking = 'reference_counting' AND topic.first_offset <= topic.tracked_until
    AND NOT EXISTS (SELECT 1 FROM headwater_completion_record AS record WHERE record.row_key = message.row_key)

-- name: next_beyond_head
-- Purpose:    Cursors beyond the end of the log: the next published messages would be skipped.
-- Parameters: none
-- Index:      primary keys
SELECT cursor.subscription_id, cursor.lane, cursor.next_offset, topic.last_offset
FROM headwater_cursor AS cursor
JOIN headwater_subscription AS subscription ON subscription.subscription_id = cursor.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE cursor.next_offset > topic.last_offset + 1

-- name: orphan_cursor
-- Purpose:    Cursors of subscriptions that do not exist.
-- Parameters: none
-- Index:      the primary key of the subscriptions, once per cursor
SELECT cursor.subscription_id, cursor.lane
FROM headwater_cursor AS cursor
WHERE cursor.subscription_id <> 0
    AND NOT EXISTS (
        SELECT 1 FROM headwater_subscription AS subscription
        WHERE subscription.subscription_id = cursor.subscription_id
    )

-- name: orphan_range
-- Purpose:    Outstanding ranges of subscriptions that do not exist.
-- Parameters: none
-- Index:      the primary key of the subscriptions, once per range
SELECT part.subscription_id, part.token, part.first_offset, part.last_offset
FROM headwater_outstanding AS part
WHERE NOT EXISTS (
    SELECT 1 FROM headwater_subscription AS subscription
    WHERE subscription.subscription_id = part.subscription_id
)

-- name: orphan_record
-- Purpose:    Completion records of messages that are not stored, or beyond the tracked offsets. Those of deleted topics are
--             being removed.
-- Parameters: none
-- Index:      a scan of the records; the primary keys
SELECT record.row_key >> 43, record.row_key & 8796093022207
FROM headwater_completion_record AS record
LEFT JOIN headwater_topic AS topic ON topic.topic_id = record.row_key >> 43
WHERE record.row_key >> 43 NOT IN (SELECT topic_id FROM headwater_deleted_topic)
    AND (topic.topic_id IS NULL
        OR record.row_key & 8796093022207 > topic.tracked_until
        OR NOT EXISTS (SELECT 1 FROM headwater_message AS message WHERE message.row_key = record.row_key))

-- name: orphan_subscription
-- Purpose:    Subscriptions of topics that do not exist.
-- Parameters: none
-- Index:      the primary key of the topics
SELECT subscription.subscription_id, subscription.topic_id
FROM headwater_subscription AS subscription
WHERE NOT EXISTS (SELECT 1 FROM headwater_topic AS topic WHERE topic.topic_id = subscription.topic_id)

-- name: overlap
-- Purpose:    Outstanding ranges of one subscription (and lane) that share an offset.
-- Parameters: none
-- Index:      a window over all outstanding ranges, sorted once
SELECT subscription_id, lane, first_offset, last_offset, covered_to
FROM (
    SELECT subscription_id, lane, first_offset, last_offset,
        max(last_offset) OVER (
            PARTITION BY subscription_id, lane
            ORDER BY first_offset, last_offset, token
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS covered_to
    FROM headwater_outstanding
)
WHERE first_offset <= covered_to

-- name: parked_entry
-- Purpose:    Entries of the outbox that are PARKED without a dead letter, or have one and are not PARKED.
-- Parameters: none
-- Index:      headwater_outbox_parked, headwater_dead_letter_outbox: both ways
SELECT entry.id, 'is parked and has no dead letter'
FROM headwater_outbox_entry AS entry
WHERE entry.status = 'PARKED'
    AND NOT EXISTS (SELECT 1 FROM headwater_dead_letter AS dead WHERE dead.outbox_id = entry.id)
UNION ALL
SELECT dead.outbox_id, 'has a dead letter and is not parked'
FROM headwater_dead_letter AS dead
WHERE dead.outbox_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM headwater_outbox_entry AS entry WHERE entry.id = dead.outbox_id AND entry.status = 'PARKED')

-- name: process_log
-- Purpose:    Processes whose version is not the number of the newest entry of their log.
-- Parameters: none
-- Index:      a scan of the processes; the end of the log of each
SELECT process_id, version, newest
FROM (
    SELECT lower(hex(process.process_id)) AS process_id, process.version, coalesce((
            SELECT max(event.sequence) FROM headwater_process_event AS event
            WHERE event.process_id = process.process_id
        ), 0) AS newest
    FROM headwater_process AS process
)
WHERE version <> newest

-- name: shared_bit
-- Purpose:    Subscriptions of a topic that have the same bit.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT topic_id, bit, min(subscription_id), max(subscription_id)
FROM headwater_subscription
WHERE bit IS NOT NULL
GROUP BY topic_id, bit
HAVING count(*) > 1

-- name: stray_bit
-- Purpose:    Pending completion records with a bit that no group has.
-- Parameters: none
-- Index:      a scan of headwater_completion_record_pending
WITH known (topic_id, mask) AS (
    SELECT topic.topic_id, coalesce((
        SELECT sum(DISTINCT 1 << subscription.bit) FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = topic.topic_id AND subscription.bit IS NOT NULL
            AND (subscription.state IN ('active', 'paused') OR subscription.released_until IS NOT NULL
                OR subscription.state = 'dead' AND topic.semantics = 'queue')
    ), 0)
    FROM headwater_topic AS topic
    WHERE topic.tracking = 'reference_counting'
)
SELECT known.topic_id, record.row_key & 8796093022207, record.required, record.completed
FROM known
JOIN headwater_completion_record AS record
    ON record.row_key BETWEEN known.topic_id << 43 AND (known.topic_id << 43) | 8796093022207
WHERE record.completed_at_ms IS NULL AND (record.required | record.completed) & ~known.mask <> 0

-- name: topic_name
-- Purpose:    The names of all topics, as they are stored.
-- Parameters: none
-- Index:      a scan of the topics, few
SELECT topic_id, name
FROM headwater_topic
ORDER BY topic_id

-- name: tracked_until
-- Purpose:    Topics tracked beyond their end, or with a watermark history beyond it.
-- Parameters: none
-- Index:      the topics of the store; the watermark history of each
SELECT topic.topic_id, topic.tracked_until, topic.last_offset,
    (SELECT max(mark.watermark) FROM headwater_watermark_history AS mark WHERE mark.topic_id = topic.topic_id) AS marked
FROM headwater_topic AS topic
WHERE topic.tracked_until > topic.last_offset OR marked > topic.last_offset

-- name: unreleased
-- Purpose:    Counting subscriptions that are marked to be released from pending records.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT subscription.subscription_id, subscription.topic_id
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.released_until IS NOT NULL
    AND (subscription.state IN ('active', 'paused')
        OR subscription.state = 'dead' AND topic.semantics = 'queue')

-- name: zero_until
-- Purpose:    Topics whose zero_until contradicts whether a subscription counts, or is beyond the end of the log.
-- Parameters: none
-- Index:      the topics and subscriptions of the store
SELECT topic_id, zero_until, last_offset, counting
FROM (
    SELECT topic.topic_id, topic.zero_until, topic.last_offset,
        EXISTS (
            SELECT 1 FROM headwater_subscription AS subscription
            WHERE subscription.topic_id = topic.topic_id
                AND (subscription.state IN ('active', 'paused')
                    OR subscription.state = 'dead' AND topic.semantics = 'queue')
        ) AS counting
    FROM headwater_topic AS topic
)
WHERE (zero_until IS NOT NULL) <> counting OR zero_until > last_offset
