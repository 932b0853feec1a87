-- name: elect
-- Purpose:    Elects a worker, or confirms it; nothing changes while another worker's term lasts. A term that ends later than one
--             that begins now was stored while the clock was ahead, and is ignored.
-- Parameters: ?1 worker, ?2 until_ms, ?3 now_ms
-- Index:      the primary key
INSERT INTO headwater_election (one, worker, until_ms)
VALUES (1, ?1, ?2)
ON CONFLICT (one) DO UPDATE SET worker = excluded.worker, until_ms = excluded.until_ms
WHERE headwater_election.worker = excluded.worker OR headwater_election.until_ms <= ?3
    OR headwater_election.until_ms > excluded.until_ms

-- name: forget_dedup
-- Purpose:    Deletes dedup keys whose window is over, a bounded number at a time.
-- Parameters: ?1 now_ms, ?2 at most
-- Index:      headwater_dedup_expiry
DELETE FROM headwater_dedup
WHERE (topic_id, dedup_key) IN (
    SELECT topic_id, dedup_key FROM headwater_dedup
    WHERE expires_at_ms <= ?1
    ORDER BY expires_at_ms
    LIMIT ?2
)

-- name: job
-- Purpose:    The statistics of a job.
-- Parameters: ?1 job
-- Index:      the primary key
SELECT runs, failures, rows, backlog, last_run_at_ms, duration_us, last_error
FROM headwater_job
WHERE job = ?1

-- name: job_ran
-- Purpose:    Records a run of a job. The detection of dead groups has stored its time itself.
-- Parameters: ?1 job, ?2 rows, ?3 backlog, ?4 now_ms, ?5 duration_us, ?6 error, ?7 whether it is the detector
-- Index:      the primary key
INSERT INTO headwater_job (job, runs, failures, rows, backlog, last_run_at_ms, duration_us, last_error)
VALUES (?1, 1, ?6 IS NOT NULL, ?2, ?3, CASE WHEN ?7 THEN 0 ELSE ?4 END, ?5, ?6)
ON CONFLICT (job) DO UPDATE
SET runs = runs + 1,
    failures = failures + excluded.failures,
    rows = rows + excluded.rows,
    backlog = excluded.backlog,
    last_run_at_ms = CASE WHEN ?7 THEN last_run_at_ms ELSE excluded.last_run_at_ms END,
    duration_us = excluded.duration_us,
    last_error = excluded.last_error

-- name: promote_dedup
-- Purpose:    Stores the offset of the message of a dedup key.
-- Parameters: ?1 topic_id, ?2 dedup_key, ?3 message_id, ?4 message_offset
-- Index:      the primary key
UPDATE headwater_dedup
SET message_offset = ?4
WHERE topic_id = ?1 AND dedup_key = ?2 AND message_id = ?3

-- name: promote_due
-- Purpose:    The scheduled messages of a topic that are due, in the order in which they are promoted, and the lengths of their
--             payloads.
-- Parameters: ?1 topic_id, ?2 now_ms, ?3 at most
-- Index:      headwater_schedule_due, whose entries end in schedule_id
SELECT schedule_id, message_id, dedup_key, length(payload)
FROM headwater_schedule
WHERE topic_id = ?1 AND deliver_at_ms <= ?2
ORDER BY deliver_at_ms, schedule_id
LIMIT ?3

-- name: promote_remove
-- Purpose:    Removes one promoted message from the schedule.
-- Parameters: ?1 schedule_id
-- Index:      the primary key
DELETE FROM headwater_schedule
WHERE schedule_id = ?1

-- name: promote_topics
-- Purpose:    The topics with scheduled messages that are due; the one with the longest overdue message first, so that none
--             starves.
-- Parameters: ?1 now_ms
-- Index:      headwater_schedule_due, one search per topic
SELECT topic_id, last_offset
FROM (
    SELECT topic.topic_id, topic.last_offset, (
        SELECT min(schedule.deliver_at_ms) FROM headwater_schedule AS schedule WHERE schedule.topic_id = topic.topic_id
    ) AS deliver_at_ms
    FROM headwater_topic AS topic
)
WHERE deliver_at_ms <= ?1
ORDER BY deliver_at_ms, topic_id

-- name: resign
-- Purpose:    Ends the term of a worker.
-- Parameters: ?1 worker
-- Index:      the primary key: one row
DELETE FROM headwater_election
WHERE worker = ?1
