-- Views for people and their tools: what is stored, in readable form. The embedded file has the same ones with the same columns, named
-- headwater_topics and so on (store/sqlite/schema/views.sql). They are not used by the program, and docs/sql.md describes them.
--
-- They run with the rights of the owner, and functions in them with the caller's: a role needs rights on the view, and on as_text,
-- counts and watermark_of (schema/roles.sql).

-- A payload as text, or as x'00ff' if it is not text.
CREATE OR REPLACE FUNCTION {schema}.as_text(p_bytes bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_text text;
BEGIN
    v_text := convert_from(p_bytes, 'UTF8');
    IF v_text ~ '[\x01-\x08\x0e-\x1f\x7f-\x9f]' THEN
        RETURN 'x''' || upper(encode(p_bytes, 'hex')) || '''';
    END IF;
    RETURN v_text;
EXCEPTION
    WHEN data_exception THEN RETURN 'x''' || upper(encode(p_bytes, 'hex')) || '''';
END $$;

CREATE OR REPLACE VIEW {schema}.topics AS
SELECT t.topic_id, t.name AS topic, t.semantics, t.tracking, t.ordering, t.lanes, e.first_offset,
       -- Where the head will be after the next claim: no claim advances that of a topic without consumers.
       greatest(h.head, (SELECT m.message_offset FROM {schema}.messages(t.topic_id) m ORDER BY m.message_offset DESC LIMIT 1)) AS head,
       (SELECT count(*) FROM {schema}.subscription s WHERE s.topic_id = t.topic_id AND s.state <> 'cancelled') AS subscriptions,
       (SELECT count(*) FROM {schema}.schedule d WHERE d.topic_id = t.topic_id) AS scheduled,
       t.message_retention_ms, t.max_retention_ms, t.zero_subscription_retention_ms,
       t.block_writes AS block_writes_on_zero_subscriptions, t.zombie_subscription_ttl_ms, t.lease_ms, t.max_attempts,
       (t.settings ->> 'backoff_initial_ms')::bigint AS backoff_initial_ms, (t.settings ->> 'backoff_max_ms')::bigint AS backoff_max_ms,
       t.settings ->> 'storage' AS storage, t.payload_bytes_max, t.dedup_window_ms, t.heartbeat_interval_ms, t.heartbeat_timeout_ms,
       t.ack_log, e.removed, t.created_at
FROM {schema}.topic t
JOIN {schema}.topic_range e ON e.topic_id = t.topic_id
JOIN {schema}.head h ON h.topic_id = t.topic_id;

CREATE OR REPLACE VIEW {schema}.messages AS
SELECT t.name AS topic, m.message_offset, m.message_id, m.key, m.message_type AS type, m.content_type, m.headers, m.correlation_id,
       m.created_at, {schema}.as_text(m.payload) AS payload
FROM {schema}.topic t JOIN {schema}.message m ON m.topic_id = t.topic_id;

-- Groups with their progress. "lag" is how many offsets are not done, of an ordered group those above its floor.
CREATE OR REPLACE VIEW {schema}.subscriptions AS
SELECT s.subscription_id, t.topic, s.group_name, s.state, s.state_at, s.state_reason, b.heard_at AS heartbeat_at, s.lanes, c.next_offset,
       t.head, f.floor,
       CASE WHEN s.state = 'cancelled' THEN 0
            WHEN s.lanes > 0 THEN greatest(t.head - f.floor, 0)
            ELSE greatest(t.head - c.next_offset + 1, 0) + o.offsets END AS lag,
       o.leased, o.waiting, (SELECT count(*) FROM {schema}.dead_letter d WHERE d.subscription_id = s.subscription_id) AS dead_letters,
       s.reassigned, s.missed, s.missed_first, s.missed_last, coalesce(s.lease_ms, t.lease_ms) AS lease_ms,
       coalesce(s.max_attempts, t.max_attempts) AS max_attempts,
       coalesce(s.backoff_initial_ms, t.backoff_initial_ms) AS backoff_initial_ms,
       coalesce(s.backoff_max_ms, t.backoff_max_ms) AS backoff_max_ms,
       coalesce(s.heartbeat_timeout_ms, t.heartbeat_timeout_ms) AS heartbeat_timeout_ms, s.created_at
FROM {schema}.subscription s
JOIN {schema}.topics t ON t.topic_id = s.topic_id
JOIN {schema}.heard b ON b.subscription_id = s.subscription_id
CROSS JOIN LATERAL (SELECT min(q.next_offset) AS next_offset FROM {schema}.cursor q WHERE q.subscription_id = s.subscription_id) c
CROSS JOIN LATERAL (
    SELECT min(q.first_offset) AS lowest, coalesce(sum(q.last_offset - q.first_offset + 1), 0)::bigint AS offsets,
           count(*) FILTER (WHERE q.owner IS NOT NULL) AS leased, count(*) FILTER (WHERE q.owner IS NULL) AS waiting
    FROM {schema}.outstanding q WHERE q.subscription_id = s.subscription_id
) o
CROSS JOIN LATERAL (SELECT least(c.next_offset, o.lowest) - 1 AS floor) f;

-- What was handed out and is not done. "due_at" is the deadline of a lease (owner is set), or when a waiting range is handed out: 1970 is
-- at once, null is never. Drivers of many languages cannot read infinite times.
CREATE OR REPLACE VIEW {schema}.outstanding_ranges AS
SELECT t.name AS topic, s.group_name, o.token, o.first_offset, o.last_offset, o.lane, o.owner,
       CASE WHEN o.due_at < 'infinity' THEN greatest(o.due_at, 'epoch') END AS due_at, o.attempts, o.suspect, o.parked,
       o.key, o.last_error
FROM {schema}.outstanding o
JOIN {schema}.subscription s ON s.subscription_id = o.subscription_id
JOIN {schema}.topic t ON t.topic_id = s.topic_id;

-- Of every source: "source" is topic/group, outbox or command; "message_id" is that of the message or command.
CREATE OR REPLACE VIEW {schema}.dead_letters AS
SELECT d.dead_letter_id, coalesce(d.source, t.name || '/' || s.group_name) AS source, coalesce(d.topic, t.name) AS topic, s.group_name,
       d.message_offset, coalesce(d.command_id, d.message_id::text) AS message_id, d.key, d.message_type AS type, d.content_type,
       d.headers, d.correlation_id, CASE WHEN d.source IS NULL THEN 'FAILED' ELSE d.failed_status END AS failed_status, d.error_class,
       d.error, d.attempts, d.parked_by, d.created_at, d.buried_at, {schema}.as_text(d.payload) AS payload
FROM {schema}.dead_letter d
LEFT JOIN {schema}.subscription s ON s.subscription_id = d.subscription_id
LEFT JOIN {schema}.topic t ON t.topic_id = s.topic_id
WHERE d.source IS NOT NULL OR t.topic_id IS NOT NULL;

CREATE OR REPLACE VIEW {schema}.outbox AS
SELECT e.id, e.category, e.topic, e.key, e.type, e.headers, e.status, e.attempts, e.next_at, e.claimed_by, e.claimed_at, e.created_at,
       e.published_at, e.last_error, {schema}.as_text(e.payload) AS payload
FROM {schema}.outbox_entry e;

CREATE OR REPLACE VIEW {schema}.inbox_entries AS
SELECT i.message_id, i.handler, i.processed_at FROM {schema}.inbox i;

CREATE OR REPLACE VIEW {schema}.scheduled AS
SELECT t.name AS topic, d.deliver_at, d.message_id, d.key, d.message_type AS type, d.content_type, d.headers, d.correlation_id,
       d.dedup_key, {schema}.as_text(d.payload) AS payload
FROM {schema}.schedule d JOIN {schema}.topic t ON t.topic_id = d.topic_id;

-- Active groups of which no process sent a heartbeat for four fifths of their timeout or longer.
CREATE OR REPLACE VIEW {schema}.near_timeout AS
SELECT s.topic, s.group_name, s.heartbeat_at, extract(epoch FROM now() - s.heartbeat_at)::bigint AS silent_s,
       s.heartbeat_timeout_ms / 1000 AS timeout_s
FROM {schema}.subscriptions s
WHERE s.state = 'active' AND s.heartbeat_at <= now() - make_interval(secs => s.heartbeat_timeout_ms * 0.8 / 1000);

-- Groups whose oldest message that is not done was published over an hour ago.
CREATE OR REPLACE VIEW {schema}.stuck AS
SELECT s.topic, s.group_name, s.state, s.lag, m.message_offset, m.created_at AS oldest_at,
       extract(epoch FROM now() - m.created_at)::bigint AS oldest_s
FROM {schema}.subscriptions s
JOIN {schema}.topic t ON t.name = s.topic
CROSS JOIN LATERAL (SELECT q.message_offset, q.created_at FROM {schema}.messages(t.topic_id, s.floor + 1) q
                    ORDER BY q.message_offset LIMIT 1) m
WHERE s.state <> 'cancelled' AND s.lag > 0 AND m.created_at < now() - interval '1 hour';

-- Groups that no process serves: none ever did, or none sent a heartbeat within the timeout. "holds_messages": messages are kept for
-- them.
CREATE OR REPLACE VIEW {schema}.orphaned_groups AS
SELECT s.topic, s.group_name, s.state, s.heartbeat_at, s.lag, {schema}.counts(s.state, t.semantics) AS holds_messages
FROM {schema}.subscriptions s
JOIN {schema}.topic t ON t.name = s.topic
WHERE s.state <> 'cancelled'
  AND coalesce(s.heartbeat_at < now() - make_interval(secs => s.heartbeat_timeout_ms / 1000.0), true);

-- Backfills: offsets processed and in all, how many a second while it ran, and when the rest is done at that rate.
CREATE OR REPLACE VIEW {schema}.backfill_progress AS
SELECT b.topic, b.group_name, b.state, b.processed, b.total, CASE WHEN b.total > 0 THEN round(100.0 * b.processed / b.total, 1) ELSE 100 END AS percent,
       round(b.rate::numeric, 1) AS per_second,
       CASE WHEN b.state IN ('not_started', 'in_progress') AND b.rate > 0 THEN ceil((b.total - b.processed) / b.rate)::bigint END AS eta_s,
       b.created_at, b.progressed_at, b.error
FROM (SELECT f.topic, f.group_name, f.state, f.checkpoint - f.first_offset + 1 AS processed, f.last_offset - f.first_offset + 1 AS total,
             (f.checkpoint - f.first_offset + 1) * 1000.0 / nullif(f.ran_ms, 0) AS rate, f.created_at, f.progressed_at, f.error
      FROM {schema}.backfills(NULL) f) b;

-- The health of cleanup: how many offsets that every counting group has done are still stored, and the last run of the job. Those
-- younger than message_retention stay by intention.
CREATE OR REPLACE VIEW {schema}.cleanup AS
SELECT t.topic, t.first_offset, t.head, w.watermark, greatest(w.watermark - t.first_offset + 1, 0) AS done_and_stored,
       t.message_retention_ms, t.removed, j.last_run_at, extract(epoch FROM now() - j.last_run_at)::bigint AS last_run_s,
       j.duration_us / 1000 AS duration_ms, j.backlog, j.failures, j.last_error
FROM {schema}.topics t
CROSS JOIN LATERAL (SELECT {schema}.watermark_of(t.topic_id) AS watermark) w
LEFT JOIN {schema}.job j ON j.job = 'message_cleanup';

CREATE OR REPLACE VIEW {schema}.processes AS
SELECT p.process_id, p.process_type, p.business_key, p.status, p.paused_in, p.current_step, p.data, p.retries, p.version, p.created_at,
       p.updated_at, p.ended_at
FROM {schema}.process p;

-- Null is what an event left as it was; an empty step and the JSON null as data mean that the process has none any more.
CREATE OR REPLACE VIEW {schema}.process_events AS
SELECT e.process_id, e.sequence, e.logged_at, e.event_type, e.event, e.status, e.current_step, e.data, e.retries
FROM {schema}.process_event e;
