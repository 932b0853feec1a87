-- name: begin
-- Purpose:    A backfill begins, in place of an earlier one.
-- Parameters: ?1 subscription_id, ?2 state, ?3 first_offset, ?4 last_offset, ?5 rate_max, ?6 now_ms
-- Index:      the primary key
INSERT OR REPLACE INTO headwater_backfill (
    subscription_id, state, first_offset, last_offset, checkpoint, rate_max, created_at_ms
)
VALUES (?1, ?2, ?3, ?4, ?3 - 1, ?5, ?6)

-- name: complete
-- Purpose:    Completes the backfills of a topic: its records are made anew, with every group in them.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few; the primary key
UPDATE headwater_backfill
SET state = 'completed', checkpoint = last_offset, error = NULL, worker = NULL, worker_until_ms = NULL
WHERE subscription_id IN (SELECT subscription_id FROM headwater_subscription WHERE topic_id = ?1)

-- name: forget
-- Purpose:    Forgets the backfill of a subscription that begins at the end of the log.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_backfill
WHERE subscription_id = ?1

-- name: list
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

-- name: open
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

-- name: progress
-- Purpose:    A batch of a backfill is done.
-- Parameters: ?1 subscription_id, ?2 state, ?3 checkpoint, ?4 now_ms, ?5 ran_ms more, ?6 worker, ?7 worker_until_ms
-- Index:      the primary key
UPDATE headwater_backfill
SET state = ?2, checkpoint = ?3, progressed_at_ms = ?4, ran_ms = ran_ms + ?5, worker = ?6, worker_until_ms = ?7
WHERE subscription_id = ?1

-- name: set
-- Purpose:    Sets a group on pending records of a range, as done where it is.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 the group's bit as a mask, ?4 the same where it is done, else 0
-- Index:      headwater_record_pending
UPDATE headwater_record
SET required = required | ?3, completed = completed | ?4
WHERE row_key BETWEEN ?1 AND ?2 AND completed_at_ms IS NULL AND required & ?3 = 0

-- name: set_state
-- Purpose:    A backfill changes its state; whoever had it has it no more.
-- Parameters: ?1 subscription_id, ?2 state, ?3 error
-- Index:      the primary key
UPDATE headwater_backfill
SET state = ?2, error = ?3, worker = NULL, worker_until_ms = NULL
WHERE subscription_id = ?1
