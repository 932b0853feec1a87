-- Maintenance: elections, jobs, dead owners and groups, small things past their time; and the audit.

-- How many bytes of payloads, as they are stored, a step removes, unless one payload alone is larger: a number of rows is no bound,
-- because a payload may have any size. A statement that exceeds the statement timeout of thirty seconds is rolled back, and would
-- be repeated with the same rows for ever. 64 MB take a slow disk, which writes 16 MB a second, four seconds. The stored size of a
-- payload is read without the payload: pg_column_size() of a large one needs only the pointer to it.
CREATE OR REPLACE FUNCTION {schema}.removal_bytes() RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT 67108864::bigint $$;

-- One round of maintenance over all topics, after their heads were advanced: promotes scheduled messages, deletes expired dedup
-- keys and flags. Separate from "advance", so that no head stays locked while this waits for other locks. "more" is whether messages
-- were promoted and some that are due are left; those that another transaction is moving are not waited for.
CREATE OR REPLACE FUNCTION {schema}.maintain(
    p_promote_max integer, p_now {schema}.injected_time, OUT promoted bigint, OUT dedup_forgotten bigint, OUT more boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_bytes bigint := {schema}.promote_bytes(p_promote_max);
    v_topic integer;
BEGIN
    promoted := 0;
    -- One budget for all topics, because all are in one statement; the topic with the longest overdue message first, so that none
    -- starves.
    FOR v_topic IN SELECT s.topic_id FROM {schema}.schedule s JOIN {schema}.topic t ON t.topic_id = s.topic_id
                   WHERE s.deliver_at <= v_now GROUP BY s.topic_id ORDER BY min(s.deliver_at) LOOP
        EXIT WHEN v_bytes <= 0;
        SELECT promoted + p.messages, v_bytes - p.bytes INTO promoted, v_bytes
        FROM {schema}.promote(v_topic, p_promote_max, v_bytes, v_now) p;
    END LOOP;
    more := promoted > 0 AND EXISTS (SELECT FROM {schema}.schedule s JOIN {schema}.topic t ON t.topic_id = s.topic_id
                                     WHERE s.deliver_at <= v_now);
    DELETE FROM {schema}.dedup d WHERE d.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.dedup x WHERE x.expires_at <= v_now LIMIT 10000 FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS dedup_forgotten = ROW_COUNT;
    DELETE FROM {schema}.hole h USING {schema}.topic_range x WHERE x.topic_id = h.topic_id AND h.last_offset < x.first_offset;
    DELETE FROM {schema}.waiter w WHERE w.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.waiter x WHERE x.until < clock_timestamp() - interval '1 minute' FOR UPDATE SKIP LOCKED));
END $$;

-- Deletes the activity of owners without a heartbeat for a day and of sessions that ended, and expired dedup keys; at most p_max of each.
CREATE OR REPLACE FUNCTION {schema}.forget_old(p_max integer, p_now {schema}.injected_time) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_owners text[];
    v_activities bigint;
    v_keys bigint;
BEGIN
    -- Their totals stay, in the row with an empty owner. An owner whose leases end by missing heartbeats is kept until they have
    -- ended.
    v_owners := ARRAY(SELECT a.owner FROM {schema}.activity a
                      WHERE a.owner <> '' AND a.served_at < v_now - interval '1 day' AND NOT EXISTS (
                          SELECT FROM {schema}.owner w WHERE w.owner = a.owner)
                      UNION SELECT w.owner FROM {schema}.owner w WHERE NOT w.judged AND w.seen_at < v_now - interval '1 day'
                      -- Sessions of plain SQL that ended (functions/read.sql): there may be one for each read.
                      UNION SELECT a.owner FROM {schema}.activity a
                      WHERE starts_with(a.owner, 'sql ') AND a.served_at < v_now - interval '10 minutes' AND NOT EXISTS (
                          SELECT FROM pg_stat_activity p WHERE p.pid::text = substring(a.owner FROM '[0-9]+$'))
                      ORDER BY 1 LIMIT p_max);
    v_activities := cardinality(v_owners);
    IF v_activities > 0 THEN
        PERFORM {schema}.forget_owners(v_owners, v_now - interval '1 day', false);
    END IF;
    DELETE FROM {schema}.dedup d WHERE d.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.dedup x WHERE x.expires_at <= v_now ORDER BY x.expires_at LIMIT p_max FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_keys = ROW_COUNT;
    RETURN v_activities + v_keys;
END $$;

-- Elects or confirms the maintenance worker of the namespace. The worker keeps its term until it ends.
CREATE OR REPLACE FUNCTION {schema}.elect(p_worker text, p_term_ms bigint, p_now {schema}.injected_time) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    INSERT INTO {schema}.election AS e (worker, until) VALUES (p_worker, v_now + make_interval(secs => p_term_ms / 1000.0))
    ON CONFLICT (one) DO UPDATE SET worker = excluded.worker, until = excluded.until
        -- A term that ends later than one that begins now was stored while the clock was ahead: it is not waited for.
        WHERE e.worker = excluded.worker OR e.until <= v_now OR e.until > excluded.until;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION {schema}.resign(p_worker text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM {schema}.election e WHERE e.worker = p_worker
$$;

-- Detects dead groups. One run at a time: runs are serialised by the job's row. Under the topic range's lock the timeout is checked
-- again in the update itself: a heartbeat or a resume that committed in between is seen. A heartbeat that commits later finds a
-- dead group and resurrects it: at once or, if it was running at that moment, the next one does.
--
-- If detection was interrupted (the last run is more than three minutes ago, or older than the server's start), all groups seem
-- silent because none could send heartbeats. They become suspected, and die in a run at least a heartbeat interval later if they
-- are still silent. A suspicion ends with the next heartbeat of the group, or if the server is restarted again.
--
-- Locks: topic ranges first, then claims are excluded, then heads, each for all groups that may die and in one order: see
-- functions/locks.sql. A group that exceeds its timeout only after the first query is left to the next run.
CREATE OR REPLACE FUNCTION {schema}.detect_dead(p_now {schema}.injected_time) RETURNS TABLE (kind text, topic text, group_name text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    -- An injected time cannot be compared with the start of the server.
    v_started timestamptz := CASE WHEN p_now IS NULL THEN pg_postmaster_start_time() ELSE '-infinity' END;
    v_last timestamptz;
    v_watched boolean;
    v_ids integer[];
    v_topics integer[];
    s record;
    v_suspected timestamptz;
BEGIN
    INSERT INTO {schema}.job (job, last_run_at) VALUES ('dead_detection', 'epoch') ON CONFLICT (job) DO NOTHING;
    SELECT j.last_run_at INTO v_last FROM {schema}.job j WHERE j.job = 'dead_detection' FOR UPDATE;
    v_watched := v_last >= v_now - interval '3 minutes' AND v_last >= v_started;
    SELECT array_agg(x.subscription_id), array_agg(DISTINCT x.topic_id ORDER BY x.topic_id) INTO v_ids, v_topics
    FROM {schema}.subscription x JOIN {schema}.topic t ON t.topic_id = x.topic_id
    JOIN {schema}.heard h ON h.subscription_id = x.subscription_id
    WHERE x.state = 'active' AND h.heard_at < {schema}.before(v_now, coalesce(x.heartbeat_timeout_ms, t.heartbeat_timeout_ms))
      AND (v_watched OR x.suspected_at IS NOT NULL);
    IF v_ids IS NOT NULL THEN
        FOR i IN 1..cardinality(v_topics) LOOP
            PERFORM {schema}.begin_maintenance(v_topics[i]);
        END LOOP;
        PERFORM {schema}.hold_claims(v_ids, true);
        -- A claim that holds a head counts expiries in subscriptions: so no head is waited for while a subscription is locked.
        PERFORM FROM {schema}.head h WHERE h.topic_id = ANY (v_topics) ORDER BY h.topic_id FOR SHARE;
    END IF;
    FOR s IN
        SELECT x.subscription_id, x.topic_id, t.name, x.group_name, h.heard_at, x.suspected_at,
               {schema}.before(v_now, coalesce(x.heartbeat_timeout_ms, t.heartbeat_timeout_ms)) AS silent_since,
               make_interval(secs => coalesce(x.heartbeat_interval_ms, t.heartbeat_interval_ms) / 1000.0) AS heartbeat_interval
        FROM {schema}.subscription x JOIN {schema}.topic t ON t.topic_id = x.topic_id
        JOIN {schema}.heard h ON h.subscription_id = x.subscription_id
        WHERE x.state = 'active' AND h.heard_at <= {schema}.before(v_now, coalesce(x.heartbeat_timeout_ms, t.heartbeat_timeout_ms) * 4 / 5)
        ORDER BY x.subscription_id
    LOOP
        topic := s.name;
        group_name := s.group_name;
        v_suspected := CASE WHEN s.suspected_at > s.heard_at AND s.suspected_at >= v_started THEN s.suspected_at END;
        IF s.heard_at >= s.silent_since THEN
            kind := 'near_timeout';
        ELSIF v_suspected + s.heartbeat_interval <= v_now OR v_suspected IS NULL AND v_watched THEN
            CONTINUE WHEN s.subscription_id <> ALL (coalesce(v_ids, '{}'))
                OR NOT {schema}.die(s.subscription_id, s.silent_since, v_now);
            kind := 'died';
        ELSE
            UPDATE {schema}.subscription x SET suspected_at = coalesce(v_suspected, v_now)
            WHERE x.subscription_id = s.subscription_id AND x.suspected_at IS DISTINCT FROM coalesce(v_suspected, v_now);
            kind := 'suspected';
        END IF;
        RETURN NEXT;
    END LOOP;
    -- Times in the future were stored while the clock was ahead: they become the present. By a clock that is read now: heartbeats that
    -- came during the waits are not of the future.
    v_now := coalesce(p_now, clock_timestamp());
    UPDATE {schema}.subscription u SET heartbeat_at = v_now WHERE u.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.subscription x WHERE x.heartbeat_at > v_now + interval '1 second'
        ORDER BY x.subscription_id FOR NO KEY UPDATE SKIP LOCKED));
    UPDATE {schema}.owner w SET seen_at = v_now WHERE w.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.owner x WHERE x.seen_at > v_now + interval '1 second'
        ORDER BY x.owner FOR NO KEY UPDATE SKIP LOCKED));
    UPDATE {schema}.activity a SET served_at = v_now WHERE a.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.activity x WHERE x.served_at > v_now + interval '1 second'
        ORDER BY x.subscription_id, x.owner FOR UPDATE SKIP LOCKED));
    UPDATE {schema}.job j SET last_run_at = greatest(v_now, j.last_run_at) WHERE j.job = 'dead_detection';
END $$;

-- Declares a group dead, if it is still active and silent. The caller holds its topic range and its head, and excludes claims.
CREATE OR REPLACE FUNCTION {schema}.die(p_subscription_id integer, p_silent_since timestamptz, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.subscription s SET state = 'dead', state_at = p_now, died_elapsed_ms = {schema}.elapsed(), suspected_at = NULL
    WHERE s.subscription_id = p_subscription_id AND s.state = 'active'
      -- Not from the view: if this waits for the row, its newest version counts.
      AND greatest(s.heartbeat_at, (SELECT max(a.seen_at) FROM {schema}.activity_seen a
                                    WHERE a.subscription_id = p_subscription_id)) < p_silent_since;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM {schema}.stop_counting(p_subscription_id);
    RETURN true;
END $$;

-- Records a run of a job. A failed detection of dead groups does not count as a run of detection.
CREATE OR REPLACE FUNCTION {schema}.job_ran(
    p_job text, p_duration_us bigint, p_rows bigint, p_backlog bigint, p_error text, p_now {schema}.injected_time
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO {schema}.job AS j (job, runs, failures, rows, backlog, last_run_at, duration_us, last_error)
    VALUES (p_job, 1, (p_error IS NOT NULL)::integer, p_rows, p_backlog,
            CASE WHEN p_job = 'dead_detection' AND p_error IS NOT NULL THEN 'epoch' ELSE coalesce(p_now, clock_timestamp()) END,
            p_duration_us, p_error)
    ON CONFLICT (job) DO UPDATE
        SET runs = j.runs + 1, failures = j.failures + excluded.failures, rows = j.rows + excluded.rows, backlog = excluded.backlog,
            last_run_at = greatest(j.last_run_at, excluded.last_run_at), duration_us = excluded.duration_us, last_error = excluded.last_error
$$;

CREATE OR REPLACE FUNCTION {schema}.jobs() RETURNS SETOF {schema}.job
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT j.* FROM {schema}.job j WHERE j.runs > 0 ORDER BY j.job
$$;

-- Adds an audit entry, in the transaction of the act.
CREATE OR REPLACE FUNCTION {schema}.note_act(
    p_actor text, p_act text, p_topic text, p_group text, p_detail jsonb, p_now {schema}.injected_time
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO {schema}.audit (acted_at, actor, act, topic, group_name, detail)
    VALUES (coalesce(p_now, clock_timestamp()), p_actor, p_act, p_topic, p_group, p_detail)
$$;

-- The audit is append-only, also for the owner of the schema.
CREATE OR REPLACE FUNCTION {schema}.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid change: the audit is append-only';
END $$;
CREATE OR REPLACE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.audit
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_change();
