-- name: age
-- Purpose:    Records the last offset of a topic at an elapsed time.
-- Parameters: ?1 topic_id, ?2 elapsed_ms, ?3 last_offset
-- Index:      the primary key
INSERT OR REPLACE INTO headwater_age (topic_id, elapsed_ms, last_offset)
VALUES (?1, ?2, ?3)

-- name: age_by
-- Purpose:    The last offset that was published by an elapsed time, as far as it was recorded.
-- Parameters: ?1 topic_id, ?2 elapsed_ms
-- Index:      the primary key
SELECT last_offset
FROM headwater_age
WHERE topic_id = ?1 AND elapsed_ms <= ?2
ORDER BY elapsed_ms DESC
LIMIT 1

-- name: age_forget
-- Purpose:    Deletes the last offset recorded for a topic at an elapsed time.
-- Parameters: ?1 topic_id, ?2 elapsed_ms
-- Index:      the primary key
DELETE FROM headwater_age
WHERE topic_id = ?1 AND elapsed_ms = ?2

-- name: age_list
-- Purpose:    The elapsed times at which the last offset of a topic was recorded.
-- Parameters: ?1 topic_id
-- Index:      the primary key: about a thousand at most
SELECT elapsed_ms
FROM headwater_age
WHERE topic_id = ?1
ORDER BY elapsed_ms

-- name: age_prune
-- Purpose:    Deletes rows before the newest one that is old enough, and rows about removed messages; all rows if no
--             message is removed by age.
-- Parameters: ?1 topic_id, ?2 old enough at this elapsed time, or NULL, ?3 the first offset
-- Index:      the primary key
DELETE FROM headwater_age
WHERE topic_id = ?1
    AND (?2 IS NULL OR last_offset < ?3 - 1 OR elapsed_ms < (
        SELECT max(old.elapsed_ms) FROM headwater_age AS old
        WHERE old.topic_id = ?1 AND old.elapsed_ms <= ?2
    ))

-- name: clock
-- Purpose:    Adds the time since the clock was last read to the elapsed time: nothing if it went back, and never more
--             than a step.
-- Parameters: ?1 now_ms, ?2 step_max_ms
-- Index:      the primary key
INSERT INTO headwater_elapsed (one, read_at_ms, elapsed_ms)
VALUES (1, ?1, 0)
ON CONFLICT (one) DO UPDATE SET elapsed_ms = elapsed_ms + min(max(?1 - read_at_ms, 0), ?2), read_at_ms = ?1
RETURNING elapsed_ms

-- name: fold_activities
-- Purpose:    Adds the activity of owners that have been silent since a time to the sum of those that left.
-- Parameters: ?1 since_ms
-- Index:      a scan: as many rows as processes
INSERT INTO headwater_activity (
    subscription_id, owner, processed, failed, filtered, rate, handling_mean_us, handling_p95_us, serving, served_at_ms
)
SELECT subscription_id, '', sum(processed), sum(failed), sum(filtered), 0.0, 0, 0, 0, max(served_at_ms)
FROM headwater_activity
WHERE served_at_ms <= ?1 AND owner <> '' AND owner NOT IN (SELECT owner FROM headwater_owner)
GROUP BY subscription_id
ON CONFLICT (subscription_id, owner) DO UPDATE SET processed = processed + excluded.processed,
    failed = failed + excluded.failed, filtered = filtered + excluded.filtered,
    served_at_ms = max(served_at_ms, excluded.served_at_ms)

-- name: forget_acks
-- Purpose:    Deletes entries of the ack log of a topic whose messages were removed.
-- Parameters: ?1 topic_id, ?2 at most
-- Index:      headwater_ack_log_offsets
DELETE FROM headwater_ack_log
WHERE ack_key IN (
    SELECT log.ack_key FROM headwater_ack_log AS log
    WHERE log.topic_id = ?1
        AND log.last_offset < (SELECT topic.first_offset FROM headwater_topic AS topic WHERE topic.topic_id = ?1)
    LIMIT ?2
)

-- name: forget_activities
-- Purpose:    Deletes the activity of owners that have been silent since a time, once it is added to the sum.
-- Parameters: ?1 since_ms
-- Index:      a scan: as many rows as processes
DELETE FROM headwater_activity
WHERE served_at_ms <= ?1 AND owner <> '' AND owner NOT IN (SELECT owner FROM headwater_owner)

-- name: forget_range
-- Purpose:    Removes a waiting range of a subscription of which no message is left. Leased ranges stay with their owner.
-- Parameters: ?1 subscription_id, ?2 token, ?3 first_offset
-- Index:      the primary keys
DELETE FROM headwater_outstanding
WHERE token = ?2 AND first_offset = ?3 AND +subscription_id = ?1 AND owner IS NULL

-- name: watermark_note
-- Purpose:    Adds an entry to the watermark history of a topic.
-- Parameters: ?1 topic_id, ?2 now_ms, ?3 watermark
-- Index:      the primary key
INSERT OR REPLACE INTO headwater_watermark_history (topic_id, noted_at_ms, watermark)
VALUES (?1, ?2, ?3)

-- name: watermark_ahead
-- Purpose:    Deletes entries of the watermark history that were stored while the clock was ahead, and returns their watermarks.
-- Parameters: ?1 topic_id, ?2 now_ms
-- Index:      the primary key
DELETE FROM headwater_watermark_history
WHERE topic_id = ?1 AND noted_at_ms > ?2
RETURNING watermark

-- name: watermark_newest
-- Purpose:    The newest entry of the watermark history of a topic.
-- Parameters: ?1 topic_id
-- Index:      the primary key
SELECT noted_at_ms, watermark
FROM headwater_watermark_history
WHERE topic_id = ?1
ORDER BY noted_at_ms DESC
LIMIT 1

-- name: watermark_prune
-- Purpose:    Deletes entries of the watermark history before the newest one that is old enough; all entries if none is needed.
-- Parameters: ?1 topic_id, ?2 old enough at this time, or NULL
-- Index:      the primary key
DELETE FROM headwater_watermark_history
WHERE topic_id = ?1
    AND (?2 IS NULL OR noted_at_ms < (
        SELECT max(old.noted_at_ms) FROM headwater_watermark_history AS old
        WHERE old.topic_id = ?1 AND old.noted_at_ms <= ?2
    ))

-- name: watermark_since
-- Purpose:    The lowest watermark of a topic since a time: everything at or below it has been done ever since.
-- Parameters: ?1 topic_id, ?2 since_ms
-- Index:      the primary key: about a thousand entries at most
SELECT min(watermark)
FROM headwater_watermark_history
WHERE topic_id = ?1
    AND noted_at_ms >= (
        SELECT max(old.noted_at_ms) FROM headwater_watermark_history AS old
        WHERE old.topic_id = ?1 AND old.noted_at_ms <= ?2
    )

-- name: missed
-- Purpose:    Adds to the missed messages of a subscription.
-- Parameters: ?1 subscription_id, ?2 how many, ?3 the first, ?4 the last
-- Index:      the primary key
UPDATE headwater_subscription
SET missed = missed + ?2, missed_first = min(coalesce(missed_first, ?3), ?3),
    missed_last = max(coalesce(missed_last, ?4), ?4)
WHERE subscription_id = ?1

-- name: past
-- Purpose:    Subscriptions cancelled since a time, or dead since an elapsed time, that have no outstanding range, no
--             dead letter, no pending record. The dead group of a queue stays: without it nothing would be kept for its workers.
-- Parameters: ?1 since_ms, ?2 since_elapsed_ms
-- Index:      the subscriptions of the store, few; headwater_outstanding_leased, headwater_outstanding_waiting and
--             headwater_dead_letter_of: their first entry each
SELECT subscription.subscription_id, topic.name, subscription.group_name
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE (subscription.state = 'cancelled' AND subscription.state_at_ms <= ?1
        OR subscription.state = 'dead' AND topic.semantics = 'pub_sub' AND subscription.died_elapsed_ms <= ?2)
    AND subscription.released_until IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM headwater_outstanding AS leased
        WHERE leased.subscription_id = subscription.subscription_id AND leased.owner IS NOT NULL
    )
    AND NOT EXISTS (
        SELECT 1 FROM headwater_outstanding AS waiting
        WHERE waiting.subscription_id = subscription.subscription_id AND waiting.owner IS NULL
    )
    AND NOT EXISTS (
        SELECT 1 FROM headwater_dead_letter AS letter
        WHERE letter.subscription_id = subscription.subscription_id
    )
ORDER BY topic.name, subscription.group_name, subscription.subscription_id

-- name: raise_first
-- Purpose:    Moves the first offset of a topic up.
-- Parameters: ?1 topic_id, ?2 first_offset, ?3 messages removed
-- Index:      the primary keys
UPDATE headwater_topic
SET first_offset = ?2, removed = removed + ?3
WHERE topic_id = ?1

-- name: topics
-- Purpose:    All topics.
-- Parameters: none
-- Index:      the primary key, in order
SELECT topic_id
FROM headwater_topic
ORDER BY topic_id

-- name: vanished
-- Purpose:    The owners that are not judged by their heartbeats and have been silent since a time.
-- Parameters: ?1 since_ms
-- Index:      a scan: as many rows as processes
SELECT owner
FROM headwater_owner
WHERE judged = 0 AND seen_at_ms <= ?1

-- name: zombies
-- Purpose:    Subscriptions that have been dead for longer than their topic allows. The group of a queue never is.
-- Parameters: ?1 elapsed_ms
-- Index:      the subscriptions of the store, few
SELECT subscription.subscription_id, topic.name, subscription.group_name
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.state = 'dead' AND topic.semantics = 'pub_sub'
    AND subscription.died_elapsed_ms <= ?1 - topic.zombie_subscription_ttl_ms
ORDER BY topic.name, subscription.group_name
