-- Claiming for subscriptions ordered by key, and the claim that serves many subscriptions at once.

-- The rows a lane may give now, by offset: what is due, and parked rows whose key nothing older blocks. Of one key only its
-- oldest: were a second one given along, it could be handled although the first failed.
CREATE FUNCTION {schema}.lane_due(p_subscription_id integer, p_lane integer, p_now timestamptz)
RETURNS SETOF {schema}.outstanding
LANGUAGE sql STABLE AS $$
    SELECT oldest.* FROM (
        SELECT DISTINCT ON (o.key) o.* FROM {schema}.outstanding o
        WHERE o.subscription_id = p_subscription_id AND o.lane = p_lane AND o.key IS NOT NULL
        ORDER BY o.key, o.first_offset
    ) oldest
    WHERE oldest.parked OR oldest.due_at <= p_now
    UNION ALL
    SELECT o.* FROM {schema}.outstanding o
    WHERE o.subscription_id = p_subscription_id AND o.lane = p_lane AND o.key IS NULL AND o.due_at <= p_now
    ORDER BY first_offset
$$;

-- One lane that the caller has locked and nobody holds. Strict order per key: a range that is not one key's own (expired,
-- given back, late) may hold any key, so nothing new is taken before it is done.
CREATE FUNCTION {schema}.claim_lane(
    p_want {schema}.want, p_lane integer, p_owner text, p_deadline timestamptz, p_now timestamptz, p_parked_max bigint
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.outstanding;
    v_max bigint := p_want.messages_max * p_want.lanes;
    v_left bigint := v_max;
    -- Messages that limits of the group leave; null without. A row of one key is a message, however many lanes there are.
    v_room bigint := p_want.room;
    v_take bigint;
    v_next bigint;
    v_new record;
    v_given {schema}.claimed[] := '{}';
    v_tokens bigint[] := '{}';
    v_keyed boolean := false;
    v_blocked text[];
BEGIN
    FOR r IN SELECT * FROM {schema}.lane_due(p_want.subscription_id, p_lane, p_now) LOOP
        -- One key's own rows and ranges of any key are never given together: what blocks the one is no hindrance to the
        -- other.
        EXIT WHEN v_left = 0 OR v_room = 0 OR v_left < v_max AND v_keyed <> (r.key IS NOT NULL);
        v_keyed := r.key IS NOT NULL;
        -- A holder just past its deadline may be settling or extending this row: then nothing after it may overtake it
        -- now. What is locked is read again: it may have been settled in part meanwhile.
        SELECT * INTO r FROM {schema}.outstanding o WHERE o.token = r.token AND o.first_offset = r.first_offset
            AND (o.parked OR o.due_at <= p_now) FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        IF r.owner IS NOT NULL THEN
            RETURN NEXT {schema}.note('expired', r, r.owner);
            r := {schema}.expire(r, p_want.max_attempts);
        END IF;
        v_take := least(r.last_offset - r.first_offset + 1, v_left, v_room * p_want.lanes);
        IF r.suspect THEN
            EXIT WHEN v_left < v_max;
            v_take := {schema}.hand_out_again(r.last_offset - r.first_offset + 1, r.attempts, p_want.max_attempts);
            IF v_take = 0 THEN
                -- Its attempts are used up. Only the client can tell whether the message is of this lane, so it settles
                -- it: buried, or done if it is another lane's.
                UPDATE {schema}.outstanding o SET attempts = r.attempts - 1
                WHERE o.token = r.token AND o.first_offset = r.first_offset;
                r := {schema}.lease_row(r, 1, p_owner, p_deadline);
                RETURN NEXT {schema}.note('used_up', r, format('lease expired %s times; last %s', r.attempts, r.last_error));
                v_left := 0;
                EXIT;
            END IF;
            EXIT WHEN EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_want.subscription_id
                              AND o.owner = p_owner AND o.due_at > p_now);
            v_take := least(v_take, v_left);
        END IF;
        r := {schema}.lease_row(r, v_take, p_owner, p_deadline);
        v_left := v_left - v_take;
        v_room := v_room - {schema}.messages_in(v_take, p_want.lanes);
        v_tokens := v_tokens || r.token;
        v_given := v_given || ROW('lease', p_want.subscription_id, p_want.topic_id, r.token, r.first_offset, r.last_offset,
                                  r.attempts + 1, r.due_at, r.suspect, p_lane, NULL, NULL, NULL)::{schema}.claimed;
        -- One range of any key: a key that fails in it may come again in the next.
        EXIT WHEN r.suspect OR NOT v_keyed;
    END LOOP;
    IF v_left > 0 AND cardinality(v_tokens) = 0
       AND NOT EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_want.subscription_id
                       AND o.lane = p_lane AND o.key IS NULL)
       AND (SELECT count(*) FROM {schema}.outstanding o WHERE o.subscription_id = p_want.subscription_id
            AND o.lane = p_lane AND o.parked) < p_parked_max THEN
        SELECT c.next_offset INTO v_next FROM {schema}.cursor c
        WHERE c.subscription_id = p_want.subscription_id AND c.lane = p_lane ORDER BY c.era LIMIT 1;
        SELECT n.first_offset, n.last_offset, n.skipped INTO v_new
        FROM {schema}.take_next(p_want.topic_id, p_want.subscription_id, p_lane, v_next, v_max, NULL) n;
        IF v_new.first_offset IS NOT NULL AND EXISTS (SELECT FROM {schema}.outstanding o
                WHERE o.subscription_id = p_want.subscription_id AND o.lane = p_lane AND o.key IS NULL) THEN
            -- Asked again, after head and gaps were read: another session may have closed a gap since it was asked first, or moved the
            -- head, and handed out what came late. The new range would hold a later message of the same transaction. What the lane
            -- has is given first, and the cursor, which is locked, stays where that session has seen it.
            UPDATE {schema}.cursor c SET next_offset = v_next WHERE c.subscription_id = p_want.subscription_id AND c.lane = p_lane;
            RETURN NEXT {schema}.recheck(p_want.subscription_id, p_want.topic_id, 1);
        ELSIF v_new.first_offset IS NOT NULL THEN
            INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, owner, lane)
            VALUES ({schema}.new_token(), v_new.first_offset, v_new.last_offset, p_deadline,
                    p_want.subscription_id, p_owner, p_lane)
            RETURNING token INTO r.token;
            v_keyed := false;
            v_tokens := ARRAY[r.token];
            v_given := ARRAY[ROW('lease', p_want.subscription_id, p_want.topic_id, r.token, v_new.first_offset,
                                 v_new.last_offset, 1, p_deadline, false, p_lane, NULL, NULL, NULL)::{schema}.claimed];
        ELSIF v_new.skipped THEN
            RETURN NEXT {schema}.recheck(p_want.subscription_id, p_want.topic_id, 1);
        END IF;
    END IF;
    IF cardinality(v_tokens) > 0 THEN
        UPDATE {schema}.cursor c SET turn = currval('{schema}.lease_token')
        WHERE c.subscription_id = p_want.subscription_id AND c.lane = p_lane
          AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = p_want.subscription_id AND x.lane = p_lane
                        ORDER BY x.era LIMIT 1);
        SELECT coalesce(array_agg(DISTINCT o.key), '{}') INTO v_blocked FROM {schema}.outstanding o
        WHERE o.subscription_id = p_want.subscription_id AND o.lane = p_lane AND o.key IS NOT NULL
          AND NOT o.token = ANY (v_tokens) AND NOT v_keyed;
        FOR i IN 1..cardinality(v_given) LOOP
            v_given[i].blocked_keys := v_blocked;
            RETURN NEXT v_given[i];
        END LOOP;
    END IF;
END $$;

-- One subscription with lanes: the lane least recently given out that has something and no holder.
CREATE FUNCTION {schema}.claim_ordered(
    p_want {schema}.want, p_owner text, p_deadline timestamptz, p_now timestamptz, p_parked_max bigint
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    v_lane integer;
    v_next bigint;
    v_head bigint;
    v_held boolean;
    v_due boolean;
    v_locked integer;
    v_row {schema}.claimed;
    v_found boolean := false;
    v_skipped boolean := false;
BEGIN
    SELECT h.head INTO v_head FROM {schema}.head h WHERE h.topic_id = p_want.topic_id ORDER BY h.era LIMIT 1;
    FOR v_lane, v_next IN
        SELECT l.lane, c.next_offset FROM generate_series(0, p_want.lanes - 1) AS l (lane)
        CROSS JOIN LATERAL (SELECT q.next_offset, q.turn FROM {schema}.cursor q
                            WHERE q.subscription_id = p_want.subscription_id AND q.lane = l.lane ORDER BY q.era LIMIT 1) c
        ORDER BY c.turn, l.lane
    LOOP
        -- First without the lock: a claim that finds nothing writes nothing and gets no xid. What becomes claimable after this look
        -- wakes who waits.
        SELECT bool_or(o.owner IS NOT NULL AND o.due_at > p_now), bool_or(o.parked OR o.due_at <= p_now) INTO v_held, v_due
        FROM {schema}.outstanding o WHERE o.subscription_id = p_want.subscription_id AND o.lane = v_lane;
        CONTINUE WHEN v_held OR v_next > v_head AND v_due IS NOT TRUE;
        SELECT c.lane INTO v_locked FROM {schema}.cursor c WHERE c.subscription_id = p_want.subscription_id AND c.lane = v_lane
          AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = p_want.subscription_id AND x.lane = v_lane
                        ORDER BY x.era LIMIT 1)
        FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            v_skipped := true;
            CONTINUE;
        END IF;
        -- Looked up anew under the lock: whoever held the lock before may have leased the lane.
        CONTINUE WHEN EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_want.subscription_id
                              AND o.lane = v_lane AND o.owner IS NOT NULL AND o.due_at > p_now);
        FOR v_row IN SELECT * FROM {schema}.claim_lane(p_want, v_lane, p_owner, p_deadline, p_now, p_parked_max) LOOP
            v_found := v_found OR v_row.kind IN ('lease', 'used_up');
            RETURN NEXT v_row;
        END LOOP;
        EXIT WHEN v_found;
    END LOOP;
    IF v_skipped AND NOT v_found THEN
        RETURN NEXT {schema}.recheck(p_want.subscription_id, p_want.topic_id, 2);
    END IF;
END $$;

-- Whether a range of a subscription is due: at once, or since a time.
CREATE FUNCTION {schema}.any_due(p_subscription_id integer, p_since timestamptz, p_now timestamptz, p_parked boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id AND o.due_at = '-infinity'
                   AND (p_parked OR NOT o.parked))
        OR EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id AND o.due_at >= p_since
                   AND o.due_at <= p_now AND (p_parked OR NOT o.parked));
END $$;

-- When claiming again may find something although nobody publishes, in milliseconds; null if only a publish can.
CREATE FUNCTION {schema}.recheck_ms(p_subscription_id integer, p_topic_id integer, p_due_since timestamptz, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_due timestamptz;
    v_later bigint;
    v_soon bigint;
    h {schema}.head;
    v_age_ms double precision;
    -- A variable: a volatile argument keeps the function below from being inlined, and it is planned anew at each call.
    v_clock timestamptz := clock_timestamp();
BEGIN
    SELECT least(
        (SELECT min(o.due_at) FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id
         AND o.due_at > p_now AND NOT o.parked AND o.due_at < 'infinity'),
        (SELECT min(s.deliver_at) FROM {schema}.schedule s WHERE s.topic_id = p_topic_id)) INTO v_due;
    v_later := CASE WHEN v_due IS NOT NULL THEN greatest(ceil(extract(epoch FROM v_due - p_now) * 1000), 1) END;
    SELECT * INTO h FROM {schema}.head e WHERE e.topic_id = p_topic_id ORDER BY e.era LIMIT 1;
    IF h.stuck_at IS NOT NULL THEN
        -- The head waits for somebody's commit: look again when its patience ends, and then ever more rarely.
        v_age_ms := {schema}.stamp_age_ms(h.stuck_since, v_clock);
        SELECT CASE WHEN v_age_ms < t.gap_patience_ms THEN greatest(t.gap_patience_ms + 1 - v_age_ms, 5)
                    ELSE least(greatest(v_age_ms / 4, 5), 100) END
        INTO v_soon FROM {schema}.topic t WHERE t.topic_id = p_topic_id;
    ELSIF h.head < (SELECT coalesce(pg_sequence_last_value(t.offsets), 0) FROM {schema}.topic t WHERE t.topic_id = p_topic_id) THEN
        v_soon := 5;
    ELSIF h.gaps_until > 0 THEN
        -- What comes late comes without an offset beyond the head, and maybe without a notification.
        v_soon := 100;
    END IF;
    IF {schema}.any_due(p_subscription_id, p_due_since, p_now, false) THEN
        -- Due but not given: a suspect range waits until this owner holds nothing else, or a lane for its holder.
        v_soon := least(v_soon, 50);
    END IF;
    RETURN least(v_later, v_soon);
END $$;

-- Claims for many subscriptions of one owner, in the order of their ids, so that two claims wait for each other's
-- cursors in one order. Heads are advanced before any cursor is locked. Plans are generic and by index: these statements
-- run thousands of times a second over tables whose statistics are always stale.
CREATE FUNCTION {schema}.claim(
    p_owner text, p_subscription_ids integer[], p_messages_max integer[], p_lease_ms bigint[], p_in_flight_max bigint[],
    p_rates double precision[], p_bursts bigint[], p_durable boolean, p_promote_max integer, p_rows_max integer, p_gaps_max bigint, p_parked_max bigint, p_now {schema}.injected_time,
    p_expected timestamptz DEFAULT NULL, p_moved_ms bigint DEFAULT NULL
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_clock timestamptz := clock_timestamp();
    v_now timestamptz := coalesce(p_now, v_clock);
    v_count integer := cardinality(p_subscription_ids);
    v_wants {schema}.want[];
    v_want {schema}.want;
    v_topics integer[];
    v_skipped boolean := false;
    v_needs_head boolean;
    v_scheduled boolean;
    v_status text;
    v_next bigint;
    v_head bigint;
    v_top bigint;
    v_last bigint;
    v_gaps_until bigint;
    v_gaps_seen pg_snapshot;
    v_gaps_bound xid8;
    v_may_move boolean;
    v_stuck boolean;
    v_clear boolean;
    v_row {schema}.claimed;
    v_deadline timestamptz;
    v_found boolean;
    v_given bigint;
    v_held_ms bigint;
    -- One budget for all topics, as one statement has to do it. Those that are left get it in the next claim.
    v_promote_bytes bigint := {schema}.promote_bytes(p_promote_max);
BEGIN
    IF v_now NOT BETWEEN p_expected - interval '5 seconds' AND p_expected + interval '5 seconds' THEN
        PERFORM {schema}.refuse_step(v_now, p_expected);
    END IF;
    -- A claim lost in a power cut only means that the range is handed out again.
    IF NOT p_durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF v_count = 1 AND p_in_flight_max IS NULL THEN
        -- The short way, for a group without lanes and limits where nothing is due again and no gap is in the way. What it reads
        -- first locks nothing, and gives this transaction no xid.
        SELECT c.topic_id, c.next_offset, t.lease_ms, {schema}.due_since(c.due_from, v_now), h.head,
               h.gaps_until, h.gaps_seen, h.gaps_bound, h.stuck_at IS NULL AND t.storage = 'shared', h.stuck_at IS NOT NULL,
               coalesce(pg_sequence_last_value(t.offsets), 0),
               c.next_offset > greatest(h.gaps_until, h.holes_until)
               AND (h.gaps_until = 0 OR {schema}.stamp_age_ms(h.gaps_checked_at, v_clock) <= 20)
        INTO v_want.topic_id, v_next, v_want.lease_ms, v_want.due_since, v_head, v_gaps_until, v_gaps_seen, v_gaps_bound, v_may_move, v_stuck, v_last, v_clear
        FROM {schema}.cursor c
        CROSS JOIN LATERAL (SELECT y.head, y.gaps_until, y.gaps_seen, y.gaps_bound, y.gaps_checked_at, y.holes_until, y.stuck_at
                            FROM {schema}.head y WHERE y.topic_id = c.topic_id ORDER BY y.era LIMIT 1) h
        JOIN {schema}.topic t ON t.topic_id = c.topic_id
        WHERE c.subscription_id = p_subscription_ids[1] AND c.lane = 0 AND NOT c.ordered AND c.active
        ORDER BY c.era LIMIT 1;
    END IF;
    IF v_clear THEN
        v_clear := NOT EXISTS (SELECT FROM {schema}.schedule d WHERE d.topic_id = v_want.topic_id AND d.deliver_at <= v_now)
            AND NOT EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_ids[1]
                            AND o.suspect AND o.owner = p_owner AND o.due_at > v_now)
            AND NOT {schema}.any_due(p_subscription_ids[1], v_want.due_since, v_now, true);
        v_top := v_head;
    END IF;
    IF v_clear AND v_may_move AND v_last > v_head AND v_next + p_messages_max[1] > v_head + 1 THEN
        -- If nothing is missing up to the last message, and as of the same snapshot nothing has ended that may own a row in a noted
        -- gap, the head may go there (see 0004_head). Bounded, for a transaction of a million publishes; the long way then
        -- notes that the head is stuck, and it is not asked again.
        SELECT CASE WHEN count(*) = max(m.message_offset) - v_head
                         AND (v_gaps_until = 0 OR {schema}.first_ended(v_gaps_seen, pg_current_snapshot()) >= v_gaps_bound)
                    THEN max(m.message_offset) ELSE v_head END
        INTO v_top
        FROM {schema}.message_shared m
        WHERE m.topic_id = v_want.topic_id AND m.message_offset > v_head
          AND m.message_offset <= v_head + least(p_rows_max, greatest(1000, v_next + p_messages_max[1] - v_head));
    END IF;
    IF v_clear AND v_gaps_until = 0 AND NOT v_stuck AND v_next > v_head AND v_last = v_head THEN
        -- Nothing is there: the head is at the last offset taken, which was read after the flag of the waiting process was raised
        -- (see "wake"). Nothing is handed out, so operators need not be held off.
        RETURN NEXT {schema}.recheck(p_subscription_ids[1], v_want.topic_id,
            {schema}.recheck_ms(p_subscription_ids[1], v_want.topic_id, v_want.due_since, v_now));
        RETURN;
    END IF;
    v_clear := v_clear AND v_next <= v_top AND (v_top > v_head OR v_last = v_head OR v_next + p_messages_max[1] <= v_head + 1);
    -- Whether the subscription is active is asked of the cursor: what is locked is read again, in its newest version, after a
    -- pause let go of it. So is the head, where it is moved: a gap that another process noted meanwhile is above v_head, and ends
    -- the short way.
    IF v_clear AND v_top > v_head THEN
        -- Other groups need the head, so a claim that has it waits for no cursor; the statement below finds it locked.
        WITH ahead AS MATERIALIZED (
            SELECT FROM {schema}.head e
            WHERE e.topic_id = v_want.topic_id AND e.gaps_until = v_gaps_until AND e.stuck_at IS NULL
              AND e.era <= (SELECT y.era FROM {schema}.head y WHERE y.topic_id = v_want.topic_id ORDER BY y.era LIMIT 1)
            FOR UPDATE SKIP LOCKED
        ), above AS MATERIALIZED (
            SELECT FROM {schema}.cursor c
            WHERE EXISTS (SELECT FROM ahead)
              AND c.subscription_id = p_subscription_ids[1] AND c.lane = 0 AND c.active
              AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = p_subscription_ids[1] AND x.lane = 0
                            ORDER BY x.era LIMIT 1)
              AND c.next_offset BETWEEN v_next AND v_top
            FOR UPDATE SKIP LOCKED
        )
        UPDATE {schema}.head e SET head = greatest(e.head, v_top), moves = e.moves + 1, era = -((e.moves + 1) / 64)
        FROM above
        WHERE e.topic_id = v_want.topic_id
          AND e.era <= (SELECT y.era FROM {schema}.head y WHERE y.topic_id = v_want.topic_id ORDER BY y.era LIMIT 1);
        v_clear := FOUND;
    END IF;
    IF v_clear THEN
        WITH was AS MATERIALIZED (
            SELECT c.next_offset, c.lease_ms FROM {schema}.cursor c
            WHERE c.subscription_id = p_subscription_ids[1] AND c.lane = 0 AND c.active
              AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = p_subscription_ids[1] AND x.lane = 0
                            ORDER BY x.era LIMIT 1)
              AND c.next_offset BETWEEN v_next AND v_top
              AND (v_top > v_head OR v_last = v_head OR c.next_offset + p_messages_max[1] <= v_top + 1)
            FOR UPDATE
        ), moved AS (
            UPDATE {schema}.cursor c
            SET next_offset = least(was.next_offset + p_messages_max[1], v_top + 1), due_from = v_now - interval '200 ms',
                moves = c.moves + 1, era = -((c.moves + 1) / 64)
            FROM was
            WHERE c.subscription_id = p_subscription_ids[1] AND c.lane = 0
              AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = p_subscription_ids[1] AND x.lane = 0
                            ORDER BY x.era LIMIT 1)
            RETURNING was.next_offset AS first, c.next_offset - 1 AS last,
                      coalesce(p_lease_ms[1], was.lease_ms, v_want.lease_ms) AS lease_ms
        ), leased AS (
            INSERT INTO {schema}.outstanding AS o (token, first_offset, last_offset, due_at, subscription_id, owner)
            SELECT {schema}.new_token(), m.first, m.last,
                   CASE WHEN m.lease_ms = 0 THEN 'infinity' ELSE v_now + make_interval(secs => m.lease_ms / 1000.0) END,
                   p_subscription_ids[1], p_owner
            FROM moved m
            RETURNING o.token, o.first_offset, o.last_offset, o.due_at
        )
        SELECT 'lease', p_subscription_ids[1], v_want.topic_id, l.token, l.first_offset, l.last_offset, 1, l.due_at, false, NULL, NULL, NULL, NULL
        INTO v_row FROM leased l;
        IF FOUND THEN
            RETURN NEXT v_row;
            RETURN;
        END IF;
    END IF;
    -- Before the state is read, and until the end: see 0015_life_cycle.
    IF NOT {schema}.hold_claims(p_subscription_ids, false) THEN
        RETURN QUERY SELECT r.* FROM {schema}.subscription s
            CROSS JOIN LATERAL {schema}.recheck(s.subscription_id, s.topic_id, 2) r
            WHERE s.subscription_id = ANY (p_subscription_ids);
        RETURN;
    END IF;
    FOR i IN 1..v_count LOOP
        SELECT s.status, s.subscription_id, p_messages_max[i], coalesce(p_lease_ms[i], s.lease_ms, t.lease_ms), s.topic_id,
               s.lanes, coalesce(s.max_attempts, t.max_attempts),
               {schema}.any_due(s.subscription_id, d.due_since, v_now, true), d.due_since,
               EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = s.subscription_id AND o.suspect
                       AND o.owner = p_owner AND o.due_at > v_now),
               h.gaps_until > 0 AND coalesce({schema}.stamp_age_ms(h.gaps_checked_at, v_clock) > 20, true)
               OR d.next_offset + p_messages_max[i] * greatest(s.lanes, 1) > h.head + 1
               OR s.lanes > 1 AND EXISTS (
                   SELECT FROM generate_series(1, s.lanes - 1) AS l (lane)
                   CROSS JOIN LATERAL (SELECT q.next_offset FROM {schema}.cursor q WHERE q.subscription_id = s.subscription_id
                                       AND q.lane = l.lane ORDER BY q.era LIMIT 1) c
                   WHERE c.next_offset + p_messages_max[i] * s.lanes > h.head + 1),
               EXISTS (SELECT FROM {schema}.schedule d WHERE d.topic_id = s.topic_id AND d.deliver_at <= v_now),
               p_in_flight_max[i], p_rates[i], p_bursts[i]
        INTO v_status, v_want.subscription_id, v_want.messages_max, v_want.lease_ms, v_want.topic_id, v_want.lanes,
             v_want.max_attempts, v_want.has_due, v_want.due_since, v_want.quarantined, v_needs_head, v_scheduled, v_want.in_flight_max,
             v_want.rate, v_want.burst
        FROM {schema}.subscription s
        JOIN {schema}.topic t ON t.topic_id = s.topic_id
        CROSS JOIN LATERAL (SELECT y.head, y.gaps_until, y.gaps_checked_at FROM {schema}.head y
                            WHERE y.topic_id = s.topic_id ORDER BY y.era LIMIT 1) h
        CROSS JOIN LATERAL (SELECT CASE WHEN s.lanes = 0 THEN {schema}.due_since(q.due_from, v_now) ELSE '-infinity' END AS due_since,
                                   q.next_offset
                            FROM {schema}.cursor q WHERE q.subscription_id = s.subscription_id AND q.lane = 0
                            ORDER BY q.era LIMIT 1) d
        WHERE s.subscription_id = p_subscription_ids[i];
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'HW005', MESSAGE = format('no such subscription: %s', p_subscription_ids[i]);
        END IF;
        IF v_status <> 'active' THEN
            RETURN NEXT ROW('inactive', v_want.subscription_id, v_want.topic_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                            NULL, v_status, NULL)::{schema}.claimed;
            CONTINUE;
        END IF;
        IF v_scheduled AND v_promote_bytes > 0 THEN
            SELECT v_promote_bytes - p.bytes INTO v_promote_bytes
            FROM {schema}.promote(v_want.topic_id, p_promote_max, v_promote_bytes, v_now) p;
        END IF;
        IF v_scheduled OR v_needs_head THEN
            v_topics := v_topics || v_want.topic_id;
        END IF;
        -- A lease may only look expired, because another process moved deadlines for a step that this one did not see.
        IF v_want.has_due AND p_moved_ms <> (SELECT c.moved_ms FROM {schema}.clock c WHERE c.one) THEN
            PERFORM {schema}.refuse_step(v_now, p_expected);
        END IF;
        v_want.due_from := CASE WHEN NOT v_want.has_due THEN v_now - interval '200 ms' END;
        v_wants := array_append(v_wants, v_want);
    END LOOP;
    IF v_wants IS NULL THEN
        RETURN;
    END IF;
    IF v_topics IS NOT NULL THEN
        SELECT a.skipped INTO v_skipped FROM {schema}.advance(v_topics, p_rows_max, p_gaps_max) a;
    END IF;
    IF v_count > 1 THEN
        SELECT array_agg(w ORDER BY (w).subscription_id) INTO v_wants FROM unnest(v_wants) w;
    END IF;
    FOREACH v_want IN ARRAY v_wants LOOP
        v_found := false;
        v_given := 0;
        v_held_ms := NULL;
        v_deadline := CASE WHEN v_want.lease_ms = 0 THEN 'infinity'
                           ELSE v_now + make_interval(secs => v_want.lease_ms / 1000.0) END;
        IF NOT v_want.quarantined AND (v_want.in_flight_max IS NOT NULL OR v_want.rate IS NOT NULL) THEN
            IF {schema}.any_due(v_want.subscription_id, v_want.due_since, v_now, true) OR {schema}.is_behind(v_want) THEN
                v_want := {schema}.allow(v_want, p_now);
            ELSE
                v_want.room := 0;
            END IF;
        END IF;
        IF v_want.quarantined OR v_want.room = 0 THEN
            -- This owner holds a suspect range: nothing else until it is settled. Or a limit of the group is reached.
            NULL;
        ELSIF v_want.lanes = 0 THEN
            -- A late row handed out just now is due too.
            v_want.has_due := v_want.has_due OR v_topics IS NOT NULL;
            FOR v_row IN SELECT * FROM {schema}.claim_plain(v_want, p_owner, v_deadline, v_now) LOOP
                v_found := v_found OR v_row.kind = 'lease';
                IF v_want.room IS NOT NULL AND v_row.kind = 'lease' THEN
                    v_given := v_given + {schema}.messages_in(v_row.last_offset - v_row.first_offset + 1, v_want.lanes);
                END IF;
                RETURN NEXT v_row;
            END LOOP;
        ELSE
            FOR v_row IN SELECT * FROM {schema}.claim_ordered(v_want, p_owner, v_deadline, v_now, p_parked_max) LOOP
                v_found := v_found OR v_row.kind = 'lease';
                IF v_want.room IS NOT NULL AND v_row.kind = 'lease' THEN
                    v_given := v_given + {schema}.messages_in(v_row.last_offset - v_row.first_offset + 1, v_want.lanes);
                END IF;
                RETURN NEXT v_row;
            END LOOP;
        END IF;
        IF v_want.room IS NOT NULL THEN
            v_held_ms := {schema}.spend(v_want, v_given, v_now);
        END IF;
        IF v_held_ms IS NOT NULL THEN
            RETURN NEXT {schema}.recheck(v_want.subscription_id, v_want.topic_id, v_held_ms);
        ELSIF NOT v_found THEN
            RETURN NEXT {schema}.recheck(v_want.subscription_id, v_want.topic_id,
                CASE WHEN v_skipped THEN 3 ELSE {schema}.recheck_ms(v_want.subscription_id, v_want.topic_id, v_want.due_since, v_now) END);
        END IF;
    END LOOP;
END $$;
