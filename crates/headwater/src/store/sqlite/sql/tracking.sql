-- name: any
-- Purpose:    Whether a topic has a record.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key
SELECT EXISTS (
    SELECT 1 FROM headwater_record
    WHERE row_key BETWEEN ?1 AND ?2
)

-- name: applied
-- Purpose:    The ranges of a subscription that touch some offsets and whose completion is set in the records. They never
--             overlap: of those that begin before, only the last can reach in.
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
-- Purpose:    Forgets what was set in records that are removed.
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
-- Purpose:    The range of what is set in the records that is one too many for a step that begins at an offset.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset, ?4 how many a step may meet
-- Index:      the primary key, as many entries
SELECT first_offset
FROM headwater_applied
WHERE subscription_id = ?1 AND first_offset BETWEEN ?2 AND ?3
ORDER BY first_offset
LIMIT 1 OFFSET ?4

-- name: applied_insert
-- Purpose:    Stores a range of offsets whose completion is set in the records.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset
-- Index:      the primary key
INSERT INTO headwater_applied (subscription_id, first_offset, last_offset)
VALUES (?1, ?2, ?3)

-- name: applied_remove
-- Purpose:    Removes a range of offsets whose completion was set, before what became of it is stored.
-- Parameters: ?1 subscription_id, ?2 first_offset
-- Index:      the primary key
DELETE FROM headwater_applied
WHERE subscription_id = ?1 AND first_offset = ?2

-- name: applied_until
-- Purpose:    Stores how far what is set in the records of a subscription is what it has done.
-- Parameters: ?1 subscription_id, ?2 applied_until
-- Index:      the primary key
UPDATE headwater_subscription
SET applied_until = ?2
WHERE subscription_id = ?1

-- name: apply
-- Purpose:    Sets groups done on pending records that are for them, takes back what comes again, and completes what is
--             covered. Answers for each changed record whether it is completed.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 groups that are done, ?4 groups that are not any more, ?5 now_ms
-- Index:      headwater_record_pending
UPDATE headwater_record
SET completed = (completed | (?3 & required)) & ~?4,
    completed_at_ms = CASE WHEN required & ~((completed | ?3) & ~?4) = 0 THEN ?5 END
WHERE row_key BETWEEN ?1 AND ?2
    AND completed_at_ms IS NULL
    AND ((required & ~completed & ?3) | (completed & ?4)) <> 0
RETURNING completed_at_ms IS NOT NULL

-- name: backfill_begin
-- Purpose:    A backfill begins, in place of an earlier one.
-- Parameters: ?1 subscription_id, ?2 state, ?3 first_offset, ?4 last_offset, ?5 rate_max, ?6 now_ms
-- Index:      the primary key
INSERT OR REPLACE INTO headwater_backfill (
    subscription_id, state, first_offset, last_offset, checkpoint, rate_max, created_at_ms
)
VALUES (?1, ?2, ?3, ?4, ?3 - 1, ?5, ?6)

-- name: backfill_complete
-- Purpose:    Completes the backfills of a topic: its records are made anew, with every group in them.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few; the primary key
UPDATE headwater_backfill
SET state = 'completed', checkpoint = last_offset, error = NULL, worker = NULL, worker_until_ms = NULL
WHERE subscription_id IN (SELECT subscription_id FROM headwater_subscription WHERE topic_id = ?1)

-- name: backfill_forget
-- Purpose:    Forgets the backfill of a subscription that begins at the end of the log.
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
    backfill.progressed_at_ms, backfill.ran_ms, backfill.error, backfill.worker, backfill.worker_until_ms
FROM headwater_backfill AS backfill
JOIN headwater_subscription AS subscription ON subscription.subscription_id = backfill.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE backfill.subscription_id = coalesce(?1, backfill.subscription_id)
ORDER BY backfill.created_at_ms DESC, backfill.subscription_id DESC

-- name: backfill_open
-- Purpose:    The oldest backfill with work to do that no other worker has. One that has it for longer than anybody gets
--             it was given it by a clock that was ahead.
-- Parameters: ?1 worker, ?2 now_ms, ?3 until when it would be given now
-- Index:      the primary keys; there are as many as subscriptions at most
SELECT backfill.subscription_id
FROM headwater_backfill AS backfill
JOIN headwater_subscription AS subscription ON subscription.subscription_id = backfill.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE backfill.state IN ('not_started', 'in_progress')
    AND topic.tracking = 'reference_counting'
    AND (subscription.status IN ('active', 'paused')
        OR subscription.status = 'dead' AND topic.semantics = 'queue')
    AND (backfill.worker IS NULL OR backfill.worker = ?1 OR backfill.worker_until_ms <= ?2
        OR backfill.worker_until_ms > ?3)
ORDER BY backfill.created_at_ms, backfill.subscription_id
LIMIT 1

-- name: backfill_progress
-- Purpose:    A batch of a backfill is done.
-- Parameters: ?1 subscription_id, ?2 state, ?3 checkpoint, ?4 now_ms, ?5 ran_ms more, ?6 worker, ?7 worker_until_ms
-- Index:      the primary key
UPDATE headwater_backfill
SET state = ?2, checkpoint = ?3, progressed_at_ms = ?4, ran_ms = ran_ms + ?5, worker = ?6, worker_until_ms = ?7
WHERE subscription_id = ?1

-- name: backfill_set
-- Purpose:    Sets a group on pending records of a range, as done where it is.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 the group's bit as a mask, ?4 the same where it is done, else 0
-- Index:      headwater_record_pending
UPDATE headwater_record
SET required = required | ?3, completed = completed | ?4
WHERE row_key BETWEEN ?1 AND ?2 AND completed_at_ms IS NULL AND required & ?3 = 0

-- name: backfill_set_state
-- Purpose:    A backfill changes its state; whoever had it has it no more.
-- Parameters: ?1 subscription_id, ?2 state, ?3 error
-- Index:      the primary key
UPDATE headwater_backfill
SET state = ?2, error = ?3, worker = NULL, worker_until_ms = NULL
WHERE subscription_id = ?1

-- name: begin
-- Purpose:    A subscription takes its place in the records.
-- Parameters: ?1 subscription_id, ?2 bit, ?3 required_from
-- Index:      the primary key
UPDATE headwater_subscription
SET bit = ?2, required_from = ?3, released_until = NULL
WHERE subscription_id = ?1

-- name: bits
-- Purpose:    The bits that subscriptions of a topic have, and whether each is of one that is cancelled and that pending
--             records have let go of.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
SELECT bit, status = 'cancelled' AND released_until IS NULL
FROM headwater_subscription
WHERE topic_id = ?1 AND bit IS NOT NULL

-- name: carried
-- Purpose:    The bits in each record of a topic.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key, over all records of the topic
SELECT required | completed
FROM headwater_record
WHERE row_key BETWEEN ?1 AND ?2

-- name: change
-- Purpose:    A topic changes how it records completion, or is as far as that is.
-- Parameters: ?1 topic_id, ?2 tracking, ?3 tracked_until, ?4 change_until
-- Index:      the primary key
UPDATE headwater_topic
SET settings = json_set(settings, '$.tracking', ?2), tracked_until = ?3, change_until = ?4
WHERE topic_id = ?1

-- name: forget_applied
-- Purpose:    Forgets what was set in the records of a topic that has none any more.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the topic, few; the primary key
DELETE FROM headwater_applied
WHERE subscription_id IN (SELECT subscription_id FROM headwater_subscription WHERE topic_id = ?1)

-- name: forget_bits
-- Purpose:    Takes the bits back from the subscriptions of a topic that has no records any more.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
UPDATE headwater_subscription
SET bit = NULL, released_until = NULL, applied_until = 0
WHERE topic_id = ?1

-- name: forget_change
-- Purpose:    The records of a topic are removed: its change to offset watermark is done.
-- Parameters: ?1 topic_id
-- Index:      the primary key
UPDATE headwater_topic
SET tracked_until = 0, change_until = NULL, bits_used = 0
WHERE topic_id = ?1

-- name: forget_group_applied
-- Purpose:    Deletes some of the place in the records of a subscription that is removed.
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
-- Purpose:    Deletes some of what was touched of a subscription that is removed.
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
-- Purpose:    Forgets the records of a range of messages.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key
DELETE FROM headwater_record
WHERE row_key BETWEEN ?1 AND ?2

-- name: forget_touched
-- Purpose:    Forgets what was touched in the records of a topic that has none any more.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the topic, few; the primary key
DELETE FROM headwater_touched
WHERE subscription_id IN (SELECT subscription_id FROM headwater_subscription WHERE topic_id = ?1)

-- name: let_go
-- Purpose:    Takes the bits back from cancelled subscriptions that no record names any more.
-- Parameters: ?1 topic_id, ?2 the bits that are in records
-- Index:      headwater_subscription_cancelled
UPDATE headwater_subscription
SET bit = NULL
WHERE topic_id = ?1 AND status = 'cancelled' AND released_until IS NULL AND bit IS NOT NULL AND (?2 >> bit) & 1 = 0

-- name: moved
-- Purpose:    A cursor moved: messages from there on are for the subscription, and what is set in their records is checked again.
-- Parameters: ?1 subscription_id, ?2 next_offset
-- Index:      the primary key
UPDATE headwater_subscription
SET required_from = min(required_from, ?2), applied_until = min(applied_until, ?2 - 1)
WHERE subscription_id = ?1

-- name: names
-- Purpose:    Whose bit is whose, cancelled subscriptions too as long as they are there.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
SELECT bit, group_name
FROM headwater_subscription
WHERE topic_id = ?1 AND bit IS NOT NULL

-- name: progress
-- Purpose:    Stores how far messages have their records; nothing is written when nothing has moved.
-- Parameters: ?1 topic_id, ?2 tracked_until, ?3 change_until
-- Index:      the primary key
UPDATE headwater_topic
SET tracked_until = ?2, change_until = ?3
WHERE topic_id = ?1 AND (tracked_until <> ?2 OR change_until IS NOT ?3)

-- name: records
-- Purpose:    The records of a range of offsets.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 at most
-- Index:      the primary key
SELECT row_key, required, completed, completed_at_ms
FROM headwater_record
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key
LIMIT ?3

-- name: release
-- Purpose:    Takes a group out of pending records, and completes what is covered without it. Answers for each changed
--             record whether it is completed.
-- Parameters: ?1 row_key after, ?2 row_key to, ?3 the group's bit as a mask, ?4 now_ms
-- Index:      headwater_record_pending
UPDATE headwater_record
SET required = required & ~?3,
    completed = completed & ~?3,
    completed_at_ms = CASE WHEN required & ~?3 & ~completed = 0 THEN ?4 END
WHERE row_key > ?1 AND row_key <= ?2
    AND completed_at_ms IS NULL
    AND (required | completed) & ?3 <> 0
RETURNING completed_at_ms IS NOT NULL

-- name: release_begin
-- Purpose:    A subscription does not count any more: pending records are to let go of it, or there are none.
-- Parameters: ?1 subscription_id, ?2 released_until
-- Index:      the primary key
UPDATE headwater_subscription
SET released_until = ?2
WHERE subscription_id = ?1

-- name: release_bound
-- Purpose:    How many pending records follow a key, at most so many, and the last of them.
-- Parameters: ?1 row_key after, ?2 row_key to, ?3 at most
-- Index:      headwater_record_pending
SELECT count(*), max(row_key)
FROM (
    SELECT row_key FROM headwater_record
    WHERE row_key > ?1 AND row_key <= ?2 AND completed_at_ms IS NULL
    ORDER BY row_key
    LIMIT ?3
)

-- name: releasing
-- Purpose:    The subscriptions of a topic that pending records have not let go of.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
SELECT subscription_id, bit, released_until
FROM headwater_subscription
WHERE topic_id = ?1 AND released_until IS NOT NULL AND bit IS NOT NULL AND status IN ('dead', 'cancelled')
ORDER BY subscription_id

-- name: remove
-- Purpose:    Removes the lowest records of a topic.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 at most
-- Index:      the primary key
DELETE FROM headwater_record
WHERE row_key IN (
    SELECT row_key FROM headwater_record
    WHERE row_key BETWEEN ?1 AND ?2
    ORDER BY row_key
    LIMIT ?3
)

-- name: touch
-- Purpose:    Notes a lease that tracking met: it is met again once its row is gone.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 token, ?4 last_offset
-- Index:      the primary key
INSERT INTO headwater_touched (subscription_id, first_offset, token, last_offset)
VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET last_offset = max(last_offset, excluded.last_offset)

-- name: touched
-- Purpose:    What may be done, or not done any more, since tracking last met it: leases that tracking met and that are gone,
--             and what waited or waits.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      the primary keys, over the leases that tracking met and what was touched
SELECT first_offset, token, last_offset
FROM headwater_touched AS touched
WHERE subscription_id = ?1 AND (token = 0 OR NOT EXISTS (
    SELECT 1 FROM headwater_range AS range
    WHERE range.token = touched.token AND range.first_offset = touched.first_offset AND range.last_offset = touched.last_offset
))
ORDER BY first_offset, token
LIMIT ?2

-- name: untouch
-- Purpose:    Forgets what tracking has dealt with.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 token
-- Index:      the primary key
DELETE FROM headwater_touched
WHERE subscription_id = ?1 AND first_offset = ?2 AND token = ?3

-- name: use_bits
-- Purpose:    Notes which bits of a topic may be in its records.
-- Parameters: ?1 topic_id, ?2 bits_used
-- Index:      the primary key
UPDATE headwater_topic
SET bits_used = ?2
WHERE topic_id = ?1
