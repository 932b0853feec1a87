-- Subscribing.

-- The cursor for a start, and the first offset from which late messages are delivered to the group. Takes the lock of the head,
-- after that of the topic range, which serialises it with the hand-out of late messages and with claims that find a gap. With p_dry
-- nothing is changed or locked, and the result is an estimate.
CREATE OR REPLACE FUNCTION {schema}.find_start(
    p_topic_id integer, p_start text, p_offset bigint, p_at timestamptz, p_dry boolean,
    OUT next_offset bigint, OUT start_offset bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    h {schema}.head;
    v_first bigint;
    v_head bigint;
    v_after bigint;
    v_top bigint;
    v_missing int8multirange;
    v_late int8multirange;
BEGIN
    IF NOT p_dry THEN
        PERFORM FROM {schema}.head e WHERE e.topic_id = p_topic_id FOR UPDATE;
    END IF;
    SELECT * INTO STRICT h FROM {schema}.head e WHERE e.topic_id = p_topic_id;
    SELECT x.first_offset INTO STRICT v_first FROM {schema}.topic_range x WHERE x.topic_id = p_topic_id;
    IF p_start = 'offset' AND p_offset > {schema}.last_taken(p_topic_id) + 1 THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
            'invalid start offset: %s is beyond the end, %s is the last offset taken: start at now for what comes next',
            p_offset, {schema}.last_taken(p_topic_id));
    END IF;
    -- Rows visible now were committed before; others must be delivered when they commit. So for a start by time the head moves to
    -- the last visible row, and everything missing below it is recorded as a gap: a row that commits there is late, also for this
    -- group.
    v_head := h.head;
    IF p_start IN ('now', 'timestamp') THEN
        -- Rows of open transactions that the head has searched are not visited, as in move_head. A row that commits after this
        -- statement may be taken for missing: then it is late.
        v_after := (SELECT max(u.until) FROM unnest(h.empty_until, h.empty_bound) AS u (until, bound)
                    WHERE u.bound <= {schema}.first_ended(h.empty_seen, pg_current_snapshot()));
        SELECT m.missing, m.top, r.late INTO v_missing, v_top, v_late
        FROM {schema}.missing_above(p_topic_id, (SELECT t.storage = 'shared' FROM {schema}.topic t WHERE t.topic_id = p_topic_id),
                                    h.head, greatest(h.head, v_after), 9223372036854775807) m
        LEFT JOIN {schema}.rows_in_gaps(p_topic_id, {schema}.first_ended(h.gaps_seen, pg_current_snapshot()), 9223372036854775807,
                                        h.gaps_until, NULL) r ON h.gaps_until > 0;
    END IF;
    -- Rows in recorded gaps that were visible together with the last row. They are read in the same snapshot: otherwise the rows
    -- of a transaction that commits in between would count as before this group in the gaps, and as after it above the last row.
    -- They are handed out to the existing groups, before this group exists and before the head moves: so a transaction whose
    -- later row the head shows has its earlier rows handed out, and the order per key is kept. Rows that commit later are late
    -- for this group too.
    IF v_late IS NOT NULL AND NOT p_dry THEN
        PERFORM {schema}.hand_out_late(p_topic_id, v_late);
    END IF;
    IF v_top IS NOT NULL THEN
        h.head := v_top;
        h.stuck_at := NULL;
        IF NOT isempty(v_missing) AND NOT p_dry THEN
            INSERT INTO {schema}.gap (topic_id, first_offset, last_offset, bound, noted_at)
            SELECT p_topic_id, lower(r), upper(r) - 1, NULL, clock_timestamp() FROM unnest(v_missing) r;
            h.gaps_bound := NULL;
        END IF;
    END IF;
    IF NOT p_dry THEN
        UPDATE {schema}.head e
        SET head = h.head, stuck_at = h.stuck_at, gaps_bound = h.gaps_bound,
            gaps_until = (SELECT coalesce(max(g.last_offset), 0) FROM {schema}.gap g WHERE g.topic_id = p_topic_id)
        WHERE e.topic_id = p_topic_id;
    END IF;
    -- Below the first stored offset no message can appear: cleanup never passes a recorded gap.
    next_offset := greatest(v_first, CASE p_start
        WHEN 'now' THEN h.head + 1
        WHEN 'offset' THEN p_offset
        WHEN 'bounded' THEN h.head - p_offset + 1
        WHEN 'timestamp' THEN coalesce({schema}.first_since(p_topic_id, v_first, h.head, p_at), h.head + 1) END);
    -- Late messages below the start are delivered only for a start by time: they commit after it.
    start_offset := CASE WHEN p_start IN ('now', 'timestamp') THEN 1 ELSE next_offset END;
END $$;

-- Counts a registration of an existing group: many registrations while its floor does not move, although there are messages, mean
-- that it is flapping. False if it is no longer active or paused: then its row must not stay locked, because the caller locks the
-- topic range next, and a session that holds the topic range may wait for the subscription. If the group died while this waited for its row,
-- the row was locked; the rollback of the block releases that lock.
CREATE OR REPLACE FUNCTION {schema}.note_restart(p_subscription_id integer, p_window_ms bigint, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_floor bigint := {schema}.floor_of(p_subscription_id);
    v_since timestamptz := p_now - make_interval(secs => p_window_ms / 1000.0);
    v_idle boolean := v_floor >= (SELECT h.head FROM {schema}.subscription s JOIN {schema}.head h ON h.topic_id = s.topic_id
                                  WHERE s.subscription_id = p_subscription_id);
BEGIN
    UPDATE {schema}.subscription s
    SET (restarts, restarts_since, restarts_floor) = (
        SELECT CASE WHEN v_idle THEN 0 WHEN g.again THEN s.restarts + 1 ELSE 1 END,
               CASE WHEN g.again THEN s.restarts_since ELSE p_now END, CASE WHEN g.again THEN s.restarts_floor ELSE v_floor END
        FROM (SELECT coalesce(s.restarts_since >= v_since AND s.restarts_floor >= v_floor, false) AS again) g)
    WHERE s.subscription_id = p_subscription_id AND s.state IN ('active', 'paused');
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW000';
    END IF;
    RETURN true;
EXCEPTION
    WHEN SQLSTATE 'HW000' THEN RETURN false;
END $$;

-- Subscribes a group, or finds it. The topic range's lock serialises sessions that create or resurrect: of ten at once one does it, and
-- the others find the result. A group that is active or paused is found without the lock.
--
-- p_new is what a new group has of its own: lanes (0: not ordered), columns of its delivery policy (lease_ms, max_attempts,
-- backoff_initial_ms, backoff_max_ms, heartbeat_interval_ms, heartbeat_timeout_ms), and limits of its backfill (messages_max,
-- rate_max, batch_max, target_latency_ms). What is null or missing is the topic's, or the default. An existing group keeps its own.
CREATE OR REPLACE FUNCTION {schema}.subscribe(
    p_topic text, p_group text, p_start text, p_offset bigint, p_at timestamptz, p_window_ms bigint, p_now {schema}.injected_time,
    p_new jsonb DEFAULT '{}',
    OUT subscription_id integer, OUT topic_id integer, OUT lanes integer, OUT lease_ms bigint, OUT max_attempts integer,
    OUT backoff_initial_ms bigint, OUT backoff_max_ms bigint, OUT heartbeat_interval_ms bigint, OUT heartbeat_timeout_ms bigint,
    OUT resurrected boolean, OUT missed bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_state text;
BEGIN
    PERFORM {schema}.check_name('topic', p_topic), {schema}.check_name('group', p_group);
    topic_id := {schema}.topic_id_of(p_topic);
    resurrected := false;
    -- At most twice: a group that dies or is cancelled between the read and the next statement is read again, then under the lock.
    FOR i IN 1..2 LOOP
        SELECT s.subscription_id, s.state INTO subscription_id, v_state FROM {schema}.subscription s
        WHERE s.topic_id = subscribe.topic_id AND s.group_name = p_group AND s.state <> 'cancelled';
        EXIT WHEN v_state IN ('active', 'paused') AND {schema}.note_restart(subscription_id, p_window_ms, v_now);
        IF i = 1 THEN
            PERFORM {schema}.lock_topic_range(topic_id);
        ELSIF v_state = 'dead' THEN
            resurrected := {schema}.revive(subscription_id, NULL, v_now);
        ELSE
            subscription_id := {schema}.begin_subscription(topic_id, p_group, p_start, p_offset, p_at, p_new, v_now);
        END IF;
    END LOOP;
    SELECT s.lanes, s.lease_ms, s.max_attempts, s.backoff_initial_ms, s.backoff_max_ms, s.heartbeat_interval_ms,
           s.heartbeat_timeout_ms, s.missed
    INTO lanes, lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms, heartbeat_interval_ms, heartbeat_timeout_ms, missed
    FROM {schema}.subscription s WHERE s.subscription_id = subscribe.subscription_id;
END $$;

-- Creates a subscription. Runs under the lock of the topic range.
CREATE OR REPLACE FUNCTION {schema}.begin_subscription(
    p_topic_id integer, p_group text, p_start text, p_offset bigint, p_at timestamptz, p_new jsonb, p_now timestamptz
) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    t {schema}.topic;
    v_other text;
    v_next bigint;
    v_start bigint;
    v_id integer;
    v_lanes integer;
BEGIN
    SELECT * INTO STRICT t FROM {schema}.topic q WHERE q.topic_id = p_topic_id;
    SELECT s.group_name INTO v_other FROM {schema}.subscription s
    WHERE s.topic_id = p_topic_id AND s.state <> 'cancelled' LIMIT 1;
    IF FOUND AND t.semantics = 'queue' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
            'invalid group: topic %s is a queue and its group is %s; a second group would compete for its messages: create the topic as pub_sub for fan-out',
            t.name, v_other);
    END IF;
    SELECT f.next_offset, f.start_offset INTO v_next, v_start
    FROM {schema}.find_start(p_topic_id, p_start, p_offset, p_at, false) f;
    v_lanes := coalesce((p_new ->> 'lanes')::integer, CASE t.ordering WHEN 'key' THEN t.lanes ELSE 0 END);
    INSERT INTO {schema}.subscription AS s (topic_id, group_name, lanes, start_offset, state_at, created_at, lease_ms, max_attempts,
        backoff_initial_ms, backoff_max_ms, heartbeat_interval_ms, heartbeat_timeout_ms)
    SELECT p_topic_id, p_group, v_lanes, v_start, p_now, p_now, n.lease_ms, n.max_attempts, n.backoff_initial_ms, n.backoff_max_ms,
           n.heartbeat_interval_ms, n.heartbeat_timeout_ms
    FROM jsonb_populate_record(NULL::{schema}.subscription, p_new) n
    RETURNING s.subscription_id INTO v_id;
    INSERT INTO {schema}.cursor (subscription_id, lane, topic_id, next_offset, ordered, lease_ms)
    SELECT v_id, l, p_topic_id, v_next, v_lanes > 0, (p_new ->> 'lease_ms')::bigint
    FROM generate_series(0, greatest(v_lanes - 1, 0)) l;
    PERFORM {schema}.start_counting(v_id, p_now, p_new);
    RETURN v_id;
END $$;
