-- name: cancel_timer
-- Purpose:    Removes a time-out that is not due yet.
-- Parameters: $1 topic, $2 message_id
-- Index:      headwater_schedule_message, with the topic by its name
DELETE FROM headwater_schedule
WHERE topic_id = (SELECT topic.topic_id FROM headwater_topic AS topic WHERE topic.name = $1)
    AND message_id = $2 AND type = 'headwater.process.timer'
RETURNING schedule_id

-- name: cancel_timers
-- Purpose:    Removes time-outs that are not due yet.
-- Parameters: $1 topic, $2 message ids as a JSON array
-- Index:      headwater_schedule_message, with the topic by its name
DELETE FROM headwater_schedule
WHERE topic_id = (SELECT topic.topic_id FROM headwater_topic AS topic WHERE topic.name = $1)
    AND message_id IN (SELECT unhex(json_each.value, '-') FROM json_each($2)) AND type = 'headwater.process.timer'
RETURNING schedule_id

-- name: change
-- Purpose:    Changes a process that has this version; changes nothing otherwise.
-- Parameters: $1 process_id, $2 version, $3 status, $4 current_step, $5 whether data change, $6 data, $7 retries, $8 entries of its log as a
--             JSON array, $9 now_ms
-- Index:      the unique process_id
UPDATE headwater_process
SET status = $3,
    paused_in = CASE WHEN $3 <> 'PAUSED' THEN NULL WHEN status = 'PAUSED' THEN paused_in ELSE status END,
    current_step = $4,
    data = CASE WHEN $5 THEN $6 ELSE data END,
    retries = $7,
    version = version + json_array_length($8),
    updated_at_ms = $9,
    ended_at_ms = CASE WHEN $3 IN ('SUCCEEDED', 'FAILED', 'COMPENSATED') THEN $9 END
WHERE process_id = $1 AND version = $2
RETURNING version, created_at_ms * 1000 AS created_at_us, updated_at_ms * 1000 AS updated_at_us

-- name: change_events
-- Purpose:    Appends entries to the log of a process.
-- Parameters: $1 process_id, $2 version before, $3 entries as a JSON array, $4 now_ms
-- Index:      the unique process_id and sequence
INSERT INTO headwater_process_event (
    process_id, sequence, logged_at_ms, event_type, event, status, current_step, data, retries
)
SELECT $1, $2 + json_each.key + 1, $4, json_each.value ->> 'event_type', json_each.value ->> 'event',
    json_each.value ->> 'status', json_each.value ->> 'current_step', json_each.value ->> 'data', json_each.value ->> 'retries'
FROM json_each($3)

-- name: find
-- Purpose:    The newest processes of a status and a selection.
-- Parameters: $1 status, $2 process_type, $3 part of the type, business key or step in any case (each NULL for any), $4 before this time in
--             microseconds and $5 id (NULL for the first ones), $6 whether with data, $7 at most
-- Index:      headwater_process_status, from its end
SELECT process_id, process_type, business_key, status, paused_in, current_step, iif($6, data, NULL) AS data, retries, version,
    created_at_ms * 1000 AS created_at_us, updated_at_ms * 1000 AS updated_at_us
FROM headwater_process
WHERE status = $1
    AND ($2 IS NULL OR process_type = $2)
    AND ($3 IS NULL OR instr(lower(process_type || char(10) || coalesce(business_key, '') || char(10) || coalesce(current_step, '')), lower($3)) > 0)
    AND ($4 IS NULL OR (created_at_ms, process_id) < ($4 / 1000, $5))
ORDER BY created_at_ms DESC, process_id DESC
LIMIT $7

-- name: find_by_business_key
-- Purpose:    The newest process of a type and business key.
-- Parameters: $1 process_type, $2 business_key
-- Index:      headwater_process_business, from its end
SELECT process_id, process_type, business_key, status, paused_in, current_step, data, retries, version,
    created_at_ms * 1000 AS created_at_us, updated_at_ms * 1000 AS updated_at_us
FROM headwater_process
WHERE process_type = $1 AND business_key = $2
ORDER BY created_at_ms DESC, process_id DESC
LIMIT 1

-- name: find_by_id
-- Purpose:    A process.
-- Parameters: $1 process_id
-- Index:      the unique process_id
SELECT process_id, process_type, business_key, status, paused_in, current_step, data, retries, version,
    created_at_ms * 1000 AS created_at_us, updated_at_ms * 1000 AS updated_at_us
FROM headwater_process
WHERE process_id = $1

-- name: find_by_status
-- Purpose:    The newest processes of a status.
-- Parameters: $1 status, $2 at most
-- Index:      headwater_process_status, from its end
SELECT process_id, process_type, business_key, status, paused_in, current_step, data, retries, version,
    created_at_ms * 1000 AS created_at_us, updated_at_ms * 1000 AS updated_at_us
FROM headwater_process
WHERE status = $1
ORDER BY created_at_ms DESC, process_id DESC
LIMIT $2

-- name: find_by_type_and_status
-- Purpose:    The newest processes of a type and status.
-- Parameters: $1 process_type, $2 status, $3 at most
-- Index:      headwater_process_type, from its end
SELECT process_id, process_type, business_key, status, paused_in, current_step, data, retries, version,
    created_at_ms * 1000 AS created_at_us, updated_at_ms * 1000 AS updated_at_us
FROM headwater_process
WHERE process_type = $1 AND status = $2
ORDER BY created_at_ms DESC, process_id DESC
LIMIT $3

-- name: find_parked
-- Purpose:    The newest processes whose compensation failed: that is the last thing that happened to them.
-- Parameters: $1 at most
-- Index:      headwater_process_status, from its end; the unique process_id and sequence
SELECT process.process_id, process.process_type, process.business_key, process.status, process.paused_in, process.current_step,
    process.data, process.retries, process.version, process.created_at_ms * 1000 AS created_at_us,
    process.updated_at_ms * 1000 AS updated_at_us
FROM headwater_process AS process
WHERE process.status = 'COMPENSATING' AND EXISTS (
    SELECT 1 FROM headwater_process_event AS event
    WHERE event.process_id = process.process_id AND event.sequence = process.version
        AND event.event_type = 'CompensationFailed'
)
ORDER BY process.created_at_ms DESC, process.process_id DESC
LIMIT $1

-- name: forget
-- Purpose:    Removes processes that ended long ago, a bounded number at a time, oldest first; returns which.
-- Parameters: ?1 ended at or before, ?2 at most
-- Index:      headwater_process_ended
DELETE FROM headwater_process
WHERE process_key IN (
    SELECT ended.process_key FROM headwater_process AS ended
    WHERE ended.ended_at_ms <= ?1
    ORDER BY ended.ended_at_ms
    LIMIT ?2
)
RETURNING process_id

-- name: forget_events
-- Purpose:    Removes the log of a process.
-- Parameters: ?1 process_id
-- Index:      the unique process_id and sequence
DELETE FROM headwater_process_event
WHERE process_id = ?1

-- name: insert
-- Purpose:    Inserts a process; nothing is inserted if its id is known.
-- Parameters: $1 process_id, $2 process_type, $3 business_key, $4 current_step, $5 data, $6 retries, $7 its first event, $8 now_ms
-- Index:      the unique process_id
INSERT INTO headwater_process (
    process_id, process_type, business_key, status, current_step, data, retries, created_at_ms, updated_at_ms, version
)
VALUES ($1, $2, $3, 'NEW', $4, $5, $6, $8, $8, 1)
ON CONFLICT (process_id) DO NOTHING
RETURNING created_at_ms * 1000 AS created_at_us

-- name: insert_event
-- Purpose:    Inserts the first entry of a log.
-- Parameters: as those of insert
-- Index:      the unique process_id and sequence
INSERT INTO headwater_process_event (
    process_id, sequence, logged_at_ms, event_type, event, status, current_step, data, retries
)
VALUES ($1, 1, $8, 'ProcessStarted', $7, 'NEW', $4, $5, $6)

-- name: load
-- Purpose:    A process, with its events as a JSON array of [sequence, type, event]. One transaction writes at a time: it stays as it is
--             until this one ends.
-- Parameters: $1 process_id
-- Index:      the unique process_id; the unique process_id and sequence
SELECT process.process_id, process.process_type, process.business_key, process.status, process.paused_in, process.current_step,
    process.data, process.retries, process.version, process.created_at_ms * 1000 AS created_at_us,
    process.updated_at_ms * 1000 AS updated_at_us,
    (
        SELECT json_group_array(json_array(event.sequence, event.event_type, event.event))
        FROM headwater_process_event AS event
        WHERE event.process_id = $1
    ) AS events
FROM headwater_process AS process
WHERE process.process_id = $1

-- name: load_all
-- Purpose:    Processes, each as by load. No row if their data together are larger than a limit.
-- Parameters: $1 process ids as a JSON array, $2 bytes of data at most
-- Index:      the unique process_id; the unique process_id and sequence
SELECT process.process_id, process.process_type, process.business_key, process.status, process.paused_in, process.current_step,
    process.data, process.retries, process.version, process.created_at_ms * 1000 AS created_at_us,
    process.updated_at_ms * 1000 AS updated_at_us,
    (
        SELECT json_group_array(json_array(event.sequence, event.event_type, event.event))
        FROM headwater_process_event AS event
        WHERE event.process_id = process.process_id
    ) AS events
FROM headwater_process AS process
WHERE process.process_id IN (SELECT unhex(json_each.value, '-') FROM json_each($1))
    AND $2 >= (
        SELECT total(octet_length(other.data)) FROM headwater_process AS other
        WHERE other.process_id IN (SELECT unhex(json_each.value, '-') FROM json_each($1))
    )

-- name: log
-- Purpose:    The newest entries of the log of a process.
-- Parameters: $1 process_id, $2 at most
-- Index:      the unique process_id and sequence, from its end
SELECT process_id, sequence, logged_at_ms * 1000 AS at_us, event_type, event, status, current_step, data, retries
FROM headwater_process_event
WHERE process_id = $1
ORDER BY sequence DESC
LIMIT $2
