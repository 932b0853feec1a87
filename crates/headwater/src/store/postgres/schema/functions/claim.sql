-- Claiming: first what is due again, else the next offsets up to the head.

-- When a lease ends; a lease of 0 ms has no deadline.
CREATE OR REPLACE FUNCTION {schema}.deadline(p_lease_ms bigint, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_lease_ms = 0 THEN 'infinity' ELSE p_now + make_interval(secs => p_lease_ms / 1000.0) END
$$;

-- Wants, with what is known of their subscriptions before heads are advanced: the state (null if there is no such subscription),
-- whether the head has to be advanced, and whether scheduled messages of the topic are due.
CREATE OR REPLACE FUNCTION {schema}.read_wants(
    p_subscription_ids integer[], p_messages_max integer[], p_lease_ms bigint[], p_in_flight_max bigint[],
    p_rates double precision[], p_bursts bigint[], p_clock timestamptz, p_now timestamptz
) RETURNS TABLE (want {schema}.want, state text, needs_head boolean, scheduled boolean)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT ROW(u.subscription_id, u.messages_max, coalesce(u.lease_ms, s.lease_ms, t.lease_ms), s.topic_id, s.lanes,
               coalesce(s.max_attempts, t.max_attempts), NULL, NULL, NULL, NULL, u.in_flight_max, u.rate, u.burst,
               NULL, NULL, NULL, NULL, NULL)::{schema}.want,
           s.state,
           {schema}.gaps_due(h.gaps_until, h.gaps_checked_at, h.gaps_seen, h.gaps_bound, p_clock)
           OR EXISTS (
               SELECT FROM generate_series(0, greatest(s.lanes, 1) - 1) AS l (lane)
               CROSS JOIN LATERAL (SELECT q.next_offset FROM {schema}.cursor q WHERE q.subscription_id = s.subscription_id
                                   AND q.lane = l.lane ORDER BY q.era LIMIT 1) c
               WHERE c.next_offset + u.messages_max * greatest(s.lanes, 1) > h.head + 1),
           EXISTS (SELECT FROM {schema}.schedule d WHERE d.topic_id = s.topic_id AND d.deliver_at <= p_now)
    FROM unnest(p_subscription_ids, p_messages_max, p_lease_ms, p_in_flight_max, p_rates, p_bursts)
         AS u (subscription_id, messages_max, lease_ms, in_flight_max, rate, burst)
    LEFT JOIN {schema}.subscription s ON s.subscription_id = u.subscription_id
    LEFT JOIN {schema}.topic t ON t.topic_id = s.topic_id
    LEFT JOIN LATERAL (SELECT y.head, y.gaps_until, y.gaps_checked_at, y.gaps_seen, y.gaps_bound FROM {schema}.head y
                       WHERE y.topic_id = s.topic_id ORDER BY y.era LIMIT 1) h ON true;
END $$;

-- What wants may take now, in the order of their subscriptions: whether a range is due, whether the owner holds a suspect range, and
-- whether the next offsets follow each other without a gap or a hole.
CREATE OR REPLACE FUNCTION {schema}.weigh_wants(p_wants {schema}.want[], p_owner text, p_now timestamptz)
RETURNS TABLE (want {schema}.want, has_due boolean, due_since timestamptz, quarantined boolean, is_clear boolean)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT w, {schema}.any_due(w.subscription_id, c.due_since, p_now, true), c.due_since,
           EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = w.subscription_id AND o.suspect
                   AND o.owner = p_owner AND o.due_at > p_now),
           c.next_offset > greatest(h.gaps_until, h.holes_until)
    FROM unnest(p_wants) w
    CROSS JOIN LATERAL (SELECT y.gaps_until, y.holes_until FROM {schema}.head y
                        WHERE y.topic_id = w.topic_id ORDER BY y.era LIMIT 1) h
    CROSS JOIN LATERAL (SELECT CASE WHEN w.lanes = 0 THEN {schema}.due_since(q.due_from, p_now) ELSE '-infinity' END AS due_since,
                               q.next_offset
                        FROM {schema}.cursor q WHERE q.subscription_id = w.subscription_id AND q.lane = 0
                        ORDER BY q.era LIMIT 1) c
    ORDER BY w.subscription_id;
END $$;

-- Hands out what a want may take, within the limits of its group. p_recheck_ms is when to claim again where the head was skipped.
CREATE OR REPLACE FUNCTION {schema}.serve_want(
    p_want {schema}.want, p_owner text, p_parked_max bigint, p_recheck_ms bigint, p_now timestamptz, p_injected timestamptz
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    v_want {schema}.want := p_want;
    v_row {schema}.claimed;
    v_found boolean := false;
    v_given bigint := 0;
    v_held_ms bigint;
BEGIN
    IF NOT v_want.quarantined AND (v_want.in_flight_max IS NOT NULL OR v_want.rate IS NOT NULL) THEN
        IF {schema}.any_due(v_want.subscription_id, v_want.due_since, p_now, true) OR {schema}.is_behind(v_want) THEN
            v_want := {schema}.allow(v_want, p_injected);
        ELSE
            v_want.room := 0;
        END IF;
    END IF;
    -- An owner that holds a suspect range gets nothing else until that is settled. Without room a limit of the group is reached.
    IF NOT v_want.quarantined AND v_want.room IS DISTINCT FROM 0 THEN
        -- A condition without columns is checked before the function is called: one of the two runs.
        FOR v_row IN
            SELECT c.* FROM {schema}.claim_unordered(v_want, p_owner, {schema}.deadline(v_want.lease_ms, p_now), p_now) c
            WHERE v_want.lanes = 0
            UNION ALL
            SELECT c.* FROM {schema}.claim_ordered(v_want, p_owner, {schema}.deadline(v_want.lease_ms, p_now), p_now, p_parked_max) c
            WHERE v_want.lanes > 0
        LOOP
            IF v_row.kind = 'lease' THEN
                v_found := true;
                v_given := v_given + {schema}.messages_in(v_row.last_offset - v_row.first_offset + 1, v_want.lanes);
            END IF;
            RETURN NEXT v_row;
        END LOOP;
    END IF;
    IF v_want.room IS NOT NULL THEN
        v_held_ms := {schema}.spend(v_want, v_given, p_now);
    END IF;
    IF v_held_ms IS NOT NULL THEN
        RETURN NEXT {schema}.recheck(v_want.subscription_id, v_want.topic_id, v_held_ms);
    ELSIF NOT v_found THEN
        RETURN NEXT {schema}.recheck(v_want.subscription_id, v_want.topic_id, coalesce(
            p_recheck_ms, {schema}.recheck_ms(v_want.subscription_id, v_want.topic_id, v_want.due_since, p_now)));
    END IF;
END $$;

-- Claims for many subscriptions of one owner, in the order of their ids, so that two claims wait for each other's
-- cursors in one order. Heads are advanced before any cursor is locked. Plans are generic and by index: these statements
-- run thousands of times a second over tables whose statistics are always stale.
CREATE OR REPLACE FUNCTION {schema}.claim(
    p_owner text, p_subscription_ids integer[], p_messages_max integer[], p_lease_ms bigint[], p_in_flight_max bigint[],
    p_rates double precision[], p_bursts bigint[], p_durable boolean, p_promote_max integer, p_rows_max integer, p_gaps_max bigint, p_parked_max bigint, p_now {schema}.injected_time,
    p_expected timestamptz DEFAULT NULL, p_moved_ms bigint DEFAULT NULL
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_clock timestamptz := clock_timestamp();
    v_now timestamptz := coalesce(p_now, v_clock);
    v_row {schema}.claimed;
    v_read record;
    v_want {schema}.want;
    v_wants {schema}.want[];
    -- Wants that are served together: nothing is due or in the way, and no limit applies.
    v_plain {schema}.want[];
    v_recheck_ms bigint;
    v_topics integer[];
    v_skipped boolean := false;
    -- One budget for all topics, as one statement has to do it. Topics that are left are promoted by the next claim.
    v_promote_bytes bigint;
BEGIN
    IF v_now NOT BETWEEN p_expected - interval '5 seconds' AND p_expected + interval '5 seconds' THEN
        PERFORM {schema}.refuse_step(v_now, p_expected);
    END IF;
    -- A claim lost in a power cut only means that the range is handed out again.
    IF NOT p_durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF cardinality(p_subscription_ids) = 1 AND p_in_flight_max IS NULL THEN
        v_row := {schema}.claim_fast(p_owner, p_subscription_ids[1], p_messages_max[1], p_lease_ms[1], p_rows_max, v_clock, v_now);
        IF v_row.kind IS NOT NULL THEN
            RETURN NEXT v_row;
            RETURN;
        END IF;
    END IF;
    -- Before the state is read, and until the end: see functions/locks.sql.
    IF NOT {schema}.hold_claims(p_subscription_ids, false) THEN
        RETURN QUERY SELECT r.* FROM {schema}.subscription s
            CROSS JOIN LATERAL {schema}.recheck(s.subscription_id, s.topic_id, 2) r
            WHERE s.subscription_id = ANY (p_subscription_ids);
        RETURN;
    END IF;
    v_promote_bytes := {schema}.promote_bytes(p_promote_max);
    FOR v_read IN SELECT r.* FROM {schema}.read_wants(
        p_subscription_ids, p_messages_max, p_lease_ms, p_in_flight_max, p_rates, p_bursts, v_clock, v_now) r
    LOOP
        v_want := v_read.want;
        IF v_read.state IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'HW005', MESSAGE = format(
                'no such subscription: %s; subscribe the group first', v_want.subscription_id);
        ELSIF v_read.state <> 'active' THEN
            RETURN NEXT ROW('inactive', v_want.subscription_id, v_want.topic_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                            NULL, NULL, NULL, v_read.state)::{schema}.claimed;
            CONTINUE;
        END IF;
        IF v_read.scheduled AND v_promote_bytes > 0 THEN
            SELECT v_promote_bytes - p.bytes INTO v_promote_bytes
            FROM {schema}.promote(v_want.topic_id, p_promote_max, v_promote_bytes, v_now) p;
        END IF;
        IF v_read.scheduled OR v_read.needs_head THEN
            v_topics := v_topics || v_want.topic_id;
        END IF;
        v_wants := array_append(v_wants, v_want);
    END LOOP;
    IF v_topics IS NOT NULL THEN
        SELECT a.skipped INTO v_skipped FROM {schema}.advance(v_topics, p_rows_max, p_gaps_max) a;
    END IF;
    v_recheck_ms := CASE WHEN v_skipped THEN 3 END;
    -- Cursors are locked in the order of their subscriptions: so a plain want is served before a later one that is not plain.
    FOR v_read IN SELECT r.* FROM {schema}.weigh_wants(v_wants, p_owner, v_now) r LOOP
        v_want := v_read.want;
        v_want.has_due := v_read.has_due;
        v_want.due_since := v_read.due_since;
        v_want.due_from := CASE WHEN NOT v_read.has_due THEN v_now - interval '200 ms' END;
        v_want.quarantined := v_read.quarantined;
        -- A lease may only seem expired, because another process moved deadlines for a step of the clock that this one did not see.
        IF v_want.has_due AND p_moved_ms <> (SELECT c.moved_ms FROM {schema}.clock c WHERE c.one) THEN
            PERFORM {schema}.refuse_step(v_now, p_expected);
        END IF;
        IF v_read.is_clear AND NOT v_want.has_due AND NOT v_want.quarantined AND v_want.lanes = 0
           AND v_want.in_flight_max IS NULL AND v_want.rate IS NULL THEN
            v_plain := array_append(v_plain, v_want);
            CONTINUE;
        END IF;
        RETURN QUERY SELECT r.* FROM {schema}.lease_next(v_plain, p_owner, v_recheck_ms, v_now) r;
        v_plain := NULL;
        RETURN QUERY SELECT r.* FROM {schema}.serve_want(v_want, p_owner, p_parked_max, v_recheck_ms, v_now, p_now) r;
    END LOOP;
    RETURN QUERY SELECT r.* FROM {schema}.lease_next(v_plain, p_owner, v_recheck_ms, v_now) r;
END $$;
