-- name: any
-- Purpose:    Whether a topic has a completion record.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key
SELECT EXISTS (
    SELECT 1 FROM headwater_completion_record
    WHERE row_key BETWEEN ?1 AND ?2
)

-- name: applied
-- Purpose:    The applied ranges of a subscription that overlap some offsets. Applied ranges never overlap each other: of those
--             that begin before the offsets, only the last can overlap them.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset
-- Index:      the primary key
SELECT first_offset, last_offset
FROM headwater_applied
WHERE subscription_id = ?1 AND first_offset BETWEEN coalesce((
        SELECT max(before.first_offset) FROM headwater_applied AS before
        WHERE before.subscription_id = ?1 AND before.first_offset < ?2
    ), ?2) AND ?3
    AND last_offset >= ?2
ORDER BY first_offset

-- name: applied_below
-- Purpose:    Deletes applied ranges of removed records.
-- Parameters: ?1 subscription_id, ?2 the topic's first offset, ?3 at most
-- Index:      the primary key
DELETE FROM headwater_applied
WHERE subscription_id = ?1 AND first_offset IN (
    SELECT first_offset FROM headwater_applied
    WHERE subscription_id = ?1 AND first_offset < ?2 AND last_offset < ?2
    ORDER BY first_offset
    LIMIT ?3
)

-- name: applied_crowd
-- Purpose:    The first applied range beyond the limit of a step that begins at an offset.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset, ?4 how many ranges a step may read
-- Index:      the primary key, as many entries
SELECT first_offset
FROM headwater_applied
WHERE subscription_id = ?1 AND first_offset BETWEEN ?2 AND ?3
ORDER BY first_offset
LIMIT 1 OFFSET ?4

-- name: applied_insert
-- Purpose:    Stores an applied range.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset
-- Index:      the primary key
INSERT INTO headwater_applied (subscription_id, first_offset, last_offset)
VALUES (?1, ?2, ?3)

-- name: applied_remove
-- Purpose:    Removes an applied range before its new ranges are stored.
-- Parameters: ?1 subscription_id, ?2 first_offset
-- Index:      the primary key
DELETE FROM headwater_applied
WHERE subscription_id = ?1 AND first_offset = ?2

-- name: applied_until
-- Purpose:    Stores up to which offset the applied ranges of a subscription are what it has done.
-- Parameters: ?1 subscription_id, ?2 applied_until
-- Index:      the primary key
UPDATE headwater_subscription
SET applied_until = ?2
WHERE subscription_id = ?1

-- name: apply
-- Purpose:    Sets the completion bits of groups on pending records that require them, clears those of redelivered messages, and
--             completes records whose groups are all done. Returns for each changed record whether it is completed.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 groups that are done, ?4 groups that are not any more, ?5 now_ms
-- Index:      headwater_completion_record_pending
UPDATE headwater_completion_record
SET completed = (completed | (?3 & required)) & ~?4,
    completed_at_ms = CASE WHEN required & ~((completed | ?3) & ~?4) = 0 THEN ?5 END
WHERE row_key BETWEEN ?1 AND ?2
    AND completed_at_ms IS NULL
    AND ((required & ~completed & ?3) | (completed & ?4)) <> 0
RETURNING completed_at_ms IS NOT NULL

-- name: backfill_begin
-- Purpose:    Starts a backfill, and replaces an earlier one.
-- Parameters: ?1 subscription_id, ?2 state, ?3 first_offset, ?4 last_offset, ?5 rate_max, ?6 now_ms, ?7 left_out, ?8 batch_max,
--             ?9 target_latency_ms
-- Index:      the primary key
INSERT OR REPLACE INTO headwater_backfill (
    subscription_id, state, first_offset, last_offset, checkpoint, rate_max, created_at_ms, left_out, batch_max,
    target_latency_ms
)
VALUES (?1, ?2, ?3, ?4, ?3 - 1, ?5, ?6, ?7, ?8, ?9)

-- name: backfill_complete
-- Purpose:    Completes the backfills of a topic: its records are created again, with every group in them.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few; the primary key
UPDATE headwater_backfill
SET state = 'completed', checkpoint = last_offset, error = NULL, worker = NULL, worker_until_ms = NULL
WHERE subscription_id IN (SELECT subscription_id FROM headwater_subscription WHERE topic_id = ?1)

-- name: backfill_forget
-- Purpose:    Deletes the backfill of a subscription that begins at the end of the log.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_backfill
WHERE subscription_id = ?1

-- name: backfill_list
-- Purpose:    The backfills, newest first: all, or a subscription's.
-- Parameters: ?1 subscription_id or NULL
-- Index:      the primary keys; there are as many as subscriptions at most
SELECT backfill.subscription_id, topic.topic_id, topic.name, subscription.group_name, topic.tracking, backfill.state,
    backfill.first_offset, backfill.last_offset, backfill.checkpoint, backfill.rate_max, backfill.created_at_ms,
    backfill.progressed_at_ms, backfill.ran_ms, backfill.error, backfill.worker, backfill.worker_until_ms,
    backfill.left_out, backfill.batch_max, backfill.target_latency_ms
FROM headwater_backfill AS backfill
JOIN headwater_subscription AS subscription ON subscription.subscription_id = backfill.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE backfill.subscription_id = coalesce(?1, backfill.subscription_id)
ORDER BY backfill.created_at_ms DESC, backfill.subscription_id DESC

-- name: backfill_open
-- Purpose:    The oldest backfill with work to do that no other worker has. A worker's lease that ends later than one that begins
--             now was stored while the clock was ahead, and is ignored.
-- Parameters: ?1 worker, ?2 now_ms, ?3 the end of a lease that begins now
-- Index:      the primary keys; there are as many as subscriptions at most
SELECT backfill.subscription_id
FROM headwater_backfill AS backfill
JOIN headwater_subscription AS subscription ON subscription.subscription_id = backfill.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE backfill.state IN ('not_started', 'in_progress')
    AND topic.tracking = 'reference_counting'
    AND (subscription.state IN ('active', 'paused')
        OR subscription.state = 'dead' AND topic.semantics = 'queue')
    AND (backfill.worker IS NULL OR backfill.worker = ?1 OR backfill.worker_until_ms <= ?2
        OR backfill.worker_until_ms > ?3)
ORDER BY backfill.created_at_ms, backfill.subscription_id
LIMIT 1

-- name: backfill_progress
-- Purpose:    Stores the progress of a backfill after a batch.
-- Parameters: ?1 subscription_id, ?2 state, ?3 checkpoint, ?4 now_ms, ?5 ran_ms more, ?6 worker, ?7 worker_until_ms
-- Index:      the primary key
UPDATE headwater_backfill
SET state = ?2, checkpoint = ?3, progressed_at_ms = ?4, ran_ms = ran_ms + ?5, worker = ?6, worker_until_ms = ?7
WHERE subscription_id = ?1

-- name: backfill_set
-- Purpose:    Adds a group to pending records of a range, with its completion if it is done.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 the group's bit as a mask, ?4 the same if it is done, else 0
-- Index:      headwater_completion_record_pending
UPDATE headwater_completion_record
SET required = required | ?3, completed = completed | ?4
WHERE row_key BETWEEN ?1 AND ?2 AND completed_at_ms IS NULL AND required & ?3 = 0

-- name: backfill_set_state
-- Purpose:    Changes the state of a backfill, and takes it from its worker.
-- Parameters: ?1 subscription_id, ?2 state, ?3 error
-- Index:      the primary key
UPDATE headwater_backfill
SET state = ?2, error = ?3, worker = NULL, worker_until_ms = NULL
WHERE subscription_id = ?1

-- name: begin
-- Purpose:    Assigns a bit in the records to a subscription.
-- Parameters: ?1 subscription_id, ?2 bit, ?3 required_from
-- Index:      the primary key
UPDATE headwater_subscription
SET bit = ?2, required_from = ?3, released_until = NULL
WHERE subscription_id = ?1

-- name: bits
-- Purpose:    The bits of the subscriptions of a topic, and whether each belongs to a cancelled subscription that is released
--             from pending records.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
SELECT bit, state = 'cancelled' AND released_until IS NULL
FROM headwater_subscription
WHERE topic_id = ?1 AND bit IS NOT NULL

-- name: carried
-- Purpose:    The bits in each record of a topic.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key, over all records of the topic
SELECT required | completed
FROM headwater_completion_record
WHERE row_key BETWEEN ?1 AND ?2

-- name: change
-- Purpose:    Changes the tracking mode of a topic, or stores the progress of the change.
-- Parameters: ?1 topic_id, ?2 tracking, ?3 tracked_until, ?4 change_until
-- Index:      the primary key
UPDATE headwater_topic
SET settings = json_set(settings, '$.tracking', ?2), tracked_until = ?3, change_until = ?4
WHERE topic_id = ?1

-- name: forget_applied
-- Purpose:    Deletes the applied ranges of a topic that has no records any more.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the topic, few; the primary key
DELETE FROM headwater_applied
WHERE subscription_id IN (SELECT subscription_id FROM headwater_subscription WHERE topic_id = ?1)

-- name: forget_bits
-- Purpose:    Clears the bits of the subscriptions of a topic that has no records any more.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
UPDATE headwater_subscription
SET bit = NULL, released_until = NULL, applied_until = 0
WHERE topic_id = ?1

-- name: forget_change
-- Purpose:    Ends the change of a topic to offset watermark once its records are removed.
-- Parameters: ?1 topic_id
-- Index:      the primary key
UPDATE headwater_topic
SET tracked_until = 0, change_until = NULL, bits_used = 0
WHERE topic_id = ?1

-- name: forget_group_applied
-- Purpose:    Deletes some applied ranges of a subscription that is removed.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      the primary key, its first entries
DELETE FROM headwater_applied
WHERE subscription_id = ?1 AND first_offset IN (
    SELECT first_offset FROM headwater_applied
    WHERE subscription_id = ?1
    ORDER BY first_offset
    LIMIT ?2
)

-- name: forget_group_touched
-- Purpose:    Deletes some touched ranges of a subscription that is removed.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      the primary key, its first entries
DELETE FROM headwater_touched
WHERE subscription_id = ?1 AND (first_offset, token) IN (
    SELECT first_offset, token FROM headwater_touched
    WHERE subscription_id = ?1
    ORDER BY first_offset, token
    LIMIT ?2
)

-- name: forget_messages
-- Purpose:    Deletes the completion records of a range of messages.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key
DELETE FROM headwater_completion_record
WHERE row_key BETWEEN ?1 AND ?2

-- name: forget_some_records
-- Purpose:    Deletes some completion records of a deleted topic.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 at most
-- Index:      the primary key
DELETE FROM headwater_completion_record
WHERE row_key IN (
    SELECT row_key FROM headwater_completion_record
    WHERE row_key BETWEEN ?1 AND ?2
    ORDER BY row_key
    LIMIT ?3
)

-- name: forget_touched
-- Purpose:    Deletes the touched ranges of a topic that has no records any more.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the topic, few; the primary key
DELETE FROM headwater_touched
WHERE subscription_id IN (SELECT subscription_id FROM headwater_subscription WHERE topic_id = ?1)

-- name: free_bits
-- Purpose:    Clears the bits of cancelled subscriptions that no record has any more.
-- Parameters: ?1 topic_id, ?2 the bits that are in records
-- Index:      headwater_subscription_cancelled
UPDATE headwater_subscription
SET bit = NULL
WHERE topic_id = ?1 AND state = 'cancelled' AND released_until IS NULL AND bit IS NOT NULL AND (?2 >> bit) & 1 = 0

-- name: moved
-- Purpose:    Records that a cursor moved: messages from there on require the subscription, and their records are checked again.
-- Parameters: ?1 subscription_id, ?2 next_offset
-- Index:      the primary key
UPDATE headwater_subscription
SET required_from = min(required_from, ?2), applied_until = min(applied_until, ?2 - 1)
WHERE subscription_id = ?1

-- name: names
-- Purpose:    The groups of bits, also of cancelled subscriptions as long as they exist.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
SELECT bit, group_name
FROM headwater_subscription
WHERE topic_id = ?1 AND bit IS NOT NULL

-- name: progress
-- Purpose:    Stores up to which offset messages have their records; nothing is written if nothing changed.
-- Parameters: ?1 topic_id, ?2 tracked_until, ?3 change_until
-- Index:      the primary key
UPDATE headwater_topic
SET tracked_until = ?2, change_until = ?3
WHERE topic_id = ?1 AND (tracked_until <> ?2 OR change_until IS NOT ?3)

-- name: records
-- Purpose:    The completion records of a range of offsets.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 at most
-- Index:      the primary key
SELECT row_key, required, completed, completed_at_ms
FROM headwater_completion_record
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key
LIMIT ?3

-- name: release
-- Purpose:    Removes a group from pending records, and completes records whose other groups are all done. Returns for each
--             changed record whether it is completed.
-- Parameters: ?1 row_key after, ?2 row_key to, ?3 the group's bit as a mask, ?4 now_ms
-- Index:      headwater_completion_record_pending
UPDATE headwater_completion_record
SET required = required & ~?3,
    completed = completed & ~?3,
    completed_at_ms = CASE WHEN required & ~?3 & ~completed = 0 THEN ?4 END
WHERE row_key > ?1 AND row_key <= ?2
    AND completed_at_ms IS NULL
    AND (required | completed) & ?3 <> 0
RETURNING completed_at_ms IS NOT NULL

-- name: release_begin
-- Purpose:    Marks a subscription that no longer counts to be released from pending records, if there are any.
-- Parameters: ?1 subscription_id, ?2 released_until
-- Index:      the primary key
UPDATE headwater_subscription
SET released_until = ?2
WHERE subscription_id = ?1

-- name: release_bound
-- Purpose:    How many pending records follow a key, up to a limit, and the last of them.
-- Parameters: ?1 row_key after, ?2 row_key to, ?3 at most
-- Index:      headwater_completion_record_pending
SELECT count(*), max(row_key)
FROM (
    SELECT row_key FROM headwater_completion_record
    WHERE row_key > ?1 AND row_key <= ?2 AND completed_at_ms IS NULL
    ORDER BY row_key
    LIMIT ?3
)

-- name: releasing
-- Purpose:    The subscriptions of a topic that are not yet released from pending records.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
SELECT subscription_id, bit, released_until
FROM headwater_subscription
WHERE topic_id = ?1 AND released_until IS NOT NULL AND bit IS NOT NULL AND state IN ('dead', 'cancelled')
ORDER BY subscription_id

-- name: remove
-- Purpose:    Removes the lowest completion records of a topic.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 at most
-- Index:      the primary key
DELETE FROM headwater_completion_record
WHERE row_key IN (
    SELECT row_key FROM headwater_completion_record
    WHERE row_key BETWEEN ?1 AND ?2
    ORDER BY row_key
    LIMIT ?3
)

-- name: touch
-- Purpose:    Records a lease that tracking found: it is processed again once its row is gone.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 token, ?4 last_offset
-- Index:      the primary key
INSERT INTO headwater_touched (subscription_id, first_offset, token, last_offset)
VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET last_offset = max(last_offset, excluded.last_offset)

-- name: touched
-- Purpose:    Offsets that may have become done, or not done any more, since tracking last processed them: leases that tracking
--             found and that are gone, and ranges that waited or wait.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      the primary keys, over the leases that tracking found and touched ranges
SELECT first_offset, token, last_offset
FROM headwater_touched AS touched
WHERE subscription_id = ?1 AND (token = 0 OR NOT EXISTS (
    SELECT 1 FROM headwater_outstanding AS range
    WHERE range.token = touched.token AND range.first_offset = touched.first_offset AND range.last_offset = touched.last_offset
))
ORDER BY first_offset, token
LIMIT ?2

-- name: untouch
-- Purpose:    Deletes a touched range that tracking has processed.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 token
-- Index:      the primary key
DELETE FROM headwater_touched
WHERE subscription_id = ?1 AND first_offset = ?2 AND token = ?3

-- name: use_bits
-- Purpose:    Stores which bits of a topic may be in its records.
-- Parameters: ?1 topic_id, ?2 bits_used
-- Index:      the primary key
UPDATE headwater_topic
SET bits_used = ?2
WHERE topic_id = ?1

-- name: inconsistent
-- Purpose:    How many of the oldest pending completion records of a topic are pending although every group is done.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 records to examine
-- Index:      headwater_completion_record_pending, as many entries
SELECT count(*)
FROM (
    SELECT required, completed FROM headwater_completion_record
    WHERE completed_at_ms IS NULL AND row_key BETWEEN ?1 AND ?2
    ORDER BY row_key
    LIMIT ?3
)
WHERE required & ~completed = 0
