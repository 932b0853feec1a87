-- name: cancel_timer
-- Purpose: remove a time-out that is not due yet.
-- Parameters: topic, message id.
-- Index: schedule_message.
SELECT 1 AS cancelled FROM {schema}.process_cancel_timer($1, $2) AS c (cancelled) WHERE c.cancelled

-- name: cancel_timers
-- Purpose: remove time-outs that are not due yet.
-- Parameters: topic, message ids as a JSON array.
-- Index: schedule_message.
SELECT {schema}.process_cancel_timers($1, ARRAY(SELECT i::uuid FROM json_array_elements_text($2::json) i)) AS cancelled

-- name: change
-- Purpose: change a process that has this version, and append to its log. No row if it has another.
-- Parameters: process id, version, status, current step, whether data change, data, retries, entries of the log as a JSON array, injected
-- time in ms.
-- Index: process_pkey.
SELECT version, (extract(epoch FROM created_at) * 1000000)::bigint AS created_at_us,
       (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at_us
FROM {schema}.process_change($1, $2, $3, $4, $5, $6, $7, $8, timestamptz 'epoch' + $9::bigint * interval '1 millisecond')

-- name: change_all
-- Purpose: change several processes, each of its version, and append to their logs. How many were changed.
-- Parameters: the changes as a JSON array, injected time in ms.
-- Index: process_pkey.
SELECT {schema}.process_change_all($1, timestamptz 'epoch' + $2::bigint * interval '1 millisecond') AS changed

-- name: enter
-- Purpose: insert the inbox entry of a handler and message. No row if it exists.
-- Parameters: message id, handler, injected time in ms.
-- Index: inbox_pkey.
SELECT 1 AS inserted
FROM {schema}.insert_if_absent($1, $2, timestamptz 'epoch' + $3::bigint * interval '1 millisecond') AS e (inserted)
WHERE e.inserted = 1

-- name: find_by_business_key
-- Purpose: the newest process of a type and business key.
-- Parameters: process type, business key.
-- Index: process_business.
SELECT process_id, process_type, business_key, status, paused_in, current_step, data, retries, version,
       (extract(epoch FROM created_at) * 1000000)::bigint AS created_at_us,
       (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at_us
FROM {schema}.process_find_by_business_key($1, $2)

-- name: find_by_id
-- Purpose: a process.
-- Parameters: process id.
-- Index: process_pkey.
SELECT process_id, process_type, business_key, status, paused_in, current_step, data, retries, version,
       (extract(epoch FROM created_at) * 1000000)::bigint AS created_at_us,
       (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at_us
FROM {schema}.process_find_by_id($1)

-- name: find_by_status
-- Purpose: the newest processes of a status.
-- Parameters: status, at most.
-- Index: process_status, from its end.
SELECT process_id, process_type, business_key, status, paused_in, current_step, data, retries, version,
       (extract(epoch FROM created_at) * 1000000)::bigint AS created_at_us,
       (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at_us
FROM {schema}.process_find_by_status($1, $2)

-- name: find_by_type_and_status
-- Purpose: the newest processes of a type and status.
-- Parameters: process type, status, at most.
-- Index: process_type, from its end.
SELECT process_id, process_type, business_key, status, paused_in, current_step, data, retries, version,
       (extract(epoch FROM created_at) * 1000000)::bigint AS created_at_us,
       (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at_us
FROM {schema}.process_find_by_type_and_status($1, $2, $3)

-- name: find_parked
-- Purpose: the newest processes whose compensation failed.
-- Parameters: at most.
-- Index: process_status, from its end; process_event_pkey.
SELECT process_id, process_type, business_key, status, paused_in, current_step, data, retries, version,
       (extract(epoch FROM created_at) * 1000000)::bigint AS created_at_us,
       (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at_us
FROM {schema}.process_find_parked($1)

-- name: forget
-- Purpose: remove processes that ended long ago.
-- Parameters: retention in ms, at most, injected time.
-- Index: process_ended.
SELECT {schema}.process_forget($1::bigint, $2, $3::timestamptz) AS forgotten

-- name: insert
-- Purpose: insert a process with its first event. No row if its id is known.
-- Parameters: process id, process type, business key, current step, data, retries, event, injected time in ms.
-- Index: process_pkey.
SELECT (extract(epoch FROM a.at) * 1000000)::bigint AS created_at_us
FROM {schema}.process_add($1, $2, $3, $4, $5, $6, $7, timestamptz 'epoch' + $8::bigint * interval '1 millisecond') AS a (at)
WHERE a.at IS NOT NULL

-- name: load
-- Purpose: a process with its events, locked until the transaction ends.
-- Parameters: process id.
-- Index: process_pkey, process_event_pkey.
SELECT (l.process).process_id, (l.process).process_type, (l.process).business_key, (l.process).status, (l.process).paused_in,
       (l.process).current_step, (l.process).data, (l.process).retries, (l.process).version,
       (extract(epoch FROM (l.process).created_at) * 1000000)::bigint AS created_at_us,
       (extract(epoch FROM (l.process).updated_at) * 1000000)::bigint AS updated_at_us, l.events
FROM {schema}.process_load($1) AS l
WHERE (l.process).process_id IS NOT NULL

-- name: load_all
-- Purpose: processes with their events, locked until the transaction ends. No row if their data are larger than a limit.
-- Parameters: process ids as a JSON array, bytes of data at most.
-- Index: process_pkey, process_event_pkey.
SELECT (l.process).process_id, (l.process).process_type, (l.process).business_key, (l.process).status, (l.process).paused_in,
       (l.process).current_step, (l.process).data, (l.process).retries, (l.process).version,
       (extract(epoch FROM (l.process).created_at) * 1000000)::bigint AS created_at_us,
       (extract(epoch FROM (l.process).updated_at) * 1000000)::bigint AS updated_at_us, l.events
FROM {schema}.process_load_all(ARRAY(SELECT i::uuid FROM json_array_elements_text($1::json) i), $2) AS l

-- name: log
-- Purpose: the newest entries of the log of a process.
-- Parameters: process id, at most.
-- Index: process_event_pkey, from its end.
SELECT process_id, sequence, (extract(epoch FROM logged_at) * 1000000)::bigint AS at_us, event_type, event, status, current_step,
       data, retries
FROM {schema}.process_log($1, $2)

-- name: signal
-- Purpose: publish a message to the manager of a process, as an operator. No row if there is no such process.
-- Parameters: process id, message id, payload, injected time in ms.
-- Index: process_pkey; the log is appended to.
SELECT s.topic_id
FROM {schema}.process_signal($1, $2, $3, timestamptz 'epoch' + $4::bigint * interval '1 millisecond') AS s (topic_id)
WHERE s.topic_id IS NOT NULL
