-- Claiming: first what is due again, else the next offsets up to the head.

-- A row for the log: an expired hand-out, or a message buried for it.
CREATE OR REPLACE FUNCTION {schema}.note(p_kind text, r {schema}.outstanding, p_detail text) RETURNS {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id integer;
    v_names text[];
BEGIN
    SELECT t.topic_id, ARRAY[t.name, s.group_name] INTO v_topic_id, v_names
    FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
    WHERE s.subscription_id = r.subscription_id;
    RETURN ROW(p_kind, r.subscription_id, v_topic_id, r.token, r.first_offset, r.last_offset, r.attempts + 1, NULL, true,
               r.lane, NULL, NULL, v_names, p_detail)::{schema}.claimed;
END $$;

-- From when on a claim has to look for due ranges. Entries of settled leases stay in the index until vacuum removes them, which an
-- old snapshot prevents: looking from the beginning would visit one for each claim there was. So a claim that found nothing
-- due notes in the cursor that it looked (due_from), and the next one looks from there on, and at '-infinity', where released
-- ranges, late rows and leases of dead owners are.
--
-- A range may appear below: its transaction read the clock, wrote a due time, and was committed after a later claim had looked.
-- So a fifth of a second before the look counts as not looked at, and the first claim of every five seconds looks from the
-- beginning: a range whose commit took longer than that is handed out late by five seconds at most, or by the fifteen of the safety
-- poll where nothing else is claimed, and never lost. A clock
-- that was set back makes it look from the beginning, too.
CREATE OR REPLACE FUNCTION {schema}.due_since(p_due_from timestamptz, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_due_from + interval '200 ms' BETWEEN date_bin('5 seconds', p_now, 'epoch') AND p_now
                THEN p_due_from ELSE '-infinity' END
$$;

-- Takes up to p_max new offsets for a cursor that the caller has locked: [first, last], or nulls. See functions/head.sql for why
-- a gap in the way is met under a share lock. It is never waited for: the claim may hold another topic's head. "more" is set where
-- a gap or a hole ended the range. p_due_from is the caller's note for the cursor, or null.
CREATE OR REPLACE FUNCTION {schema}.take_next(
    p_topic_id integer, p_subscription_id integer, p_lane integer, p_next bigint, p_max bigint, p_due_from timestamptz,
    OUT first_offset bigint, OUT last_offset bigint, OUT skipped boolean, OUT more boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    v_head bigint;
    v_gaps_until bigint;
    v_holes_until bigint;
    v_gap bigint;
BEGIN
    skipped := false;
    more := false;
    SELECT h.head, h.gaps_until, h.holes_until INTO v_head, v_gaps_until, v_holes_until
    FROM {schema}.head h WHERE h.topic_id = p_topic_id ORDER BY h.era LIMIT 1;
    IF p_next > v_head THEN
        RETURN;
    END IF;
    first_offset := p_next;
    IF p_next <= v_holes_until THEN
        -- Nothing ever comes in a hole, so it is passed without a lock.
        SELECT coalesce(max(x.last_offset) + 1, p_next) INTO first_offset FROM {schema}.hole x
        WHERE x.topic_id = p_topic_id AND x.first_offset <= p_next AND x.last_offset >= p_next;
        SELECT min(x.first_offset) - 1 INTO v_gap FROM {schema}.hole x
        WHERE x.topic_id = p_topic_id AND x.first_offset > take_next.first_offset;
    END IF;
    last_offset := least(first_offset + p_max - 1, v_head, v_gap);
    IF first_offset <= v_gaps_until AND EXISTS (
            SELECT FROM {schema}.gap g WHERE g.topic_id = p_topic_id
            AND g.first_offset <= take_next.last_offset AND g.last_offset >= take_next.first_offset) THEN
        SELECT h.head INTO v_head FROM {schema}.head h WHERE h.topic_id = p_topic_id
          AND h.era <= (SELECT y.era FROM {schema}.head y WHERE y.topic_id = p_topic_id ORDER BY y.era LIMIT 1)
        FOR SHARE SKIP LOCKED;
        IF NOT FOUND THEN
            first_offset := NULL;
            last_offset := NULL;
            skipped := true;
            RETURN;
        END IF;
        LOOP
            SELECT g.last_offset + 1 INTO v_gap FROM {schema}.gap g
            WHERE g.topic_id = p_topic_id AND g.first_offset <= take_next.first_offset AND g.last_offset >= take_next.first_offset;
            EXIT WHEN NOT FOUND;
            first_offset := v_gap;
        END LOOP;
        last_offset := least(first_offset + p_max - 1, v_head);
        SELECT min(g.first_offset) - 1 INTO v_gap FROM {schema}.gap g
        WHERE g.topic_id = p_topic_id AND g.first_offset > take_next.first_offset AND g.first_offset <= take_next.last_offset;
        last_offset := least(last_offset, v_gap);
    END IF;
    UPDATE {schema}.cursor c
    SET next_offset = greatest(take_next.first_offset, take_next.last_offset + 1), due_from = coalesce(p_due_from, c.due_from),
        moves = c.moves + 1, era = -((c.moves + 1) / 64)
    WHERE c.subscription_id = p_subscription_id AND c.lane = p_lane
      AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = p_subscription_id AND x.lane = p_lane
                    ORDER BY x.era LIMIT 1);
    IF first_offset > last_offset THEN
        -- Only a gap was there. The cursor is past it; what comes in it will come late.
        first_offset := NULL;
        last_offset := NULL;
    END IF;
    more := v_gap IS NOT NULL;
END $$;

-- One subscription without lanes. See docs/decisions for why a suspect range travels alone.
CREATE OR REPLACE FUNCTION {schema}.claim_plain(p_want {schema}.want, p_owner text, p_deadline timestamptz, p_now timestamptz)
RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.outstanding;
    v_left bigint := p_want.messages_max;
    v_take bigint;
    v_next bigint;
    v_lease record;
BEGIN
    IF p_want.has_due THEN
        FOR r IN SELECT d.* FROM (VALUES (true, '-infinity'::timestamptz, '-infinity'::timestamptz),
                                         (false, p_want.due_since, p_now)) AS span (at_once, since, until)
                 CROSS JOIN LATERAL (
                     SELECT o.* FROM {schema}.outstanding o
                     WHERE o.subscription_id = p_want.subscription_id AND o.due_at BETWEEN span.since AND span.until
                       AND (span.at_once OR o.due_at > '-infinity')
                     ORDER BY o.due_at, o.first_offset LIMIT p_want.messages_max FOR UPDATE SKIP LOCKED) d
        LOOP
            IF r.owner IS NOT NULL THEN
                RETURN NEXT {schema}.note('expired', r, r.owner);
                r := {schema}.expire(r, p_want.max_attempts);
            END IF;
            v_take := least(r.last_offset - r.first_offset + 1, v_left);
            IF r.suspect THEN
                v_take := {schema}.hand_out_again(r.last_offset - r.first_offset + 1, r.attempts, p_want.max_attempts);
                IF v_take = 0 THEN
                    RETURN NEXT {schema}.bury_suspect(r, p_want.topic_id, p_now);
                    CONTINUE;
                END IF;
                -- Alone: not with what this claim gave already, nor with anything else the owner holds.
                IF v_left < p_want.messages_max OR EXISTS (SELECT FROM {schema}.outstanding o
                        WHERE o.subscription_id = p_want.subscription_id AND o.owner = p_owner AND o.due_at > p_now) THEN
                    RETURN;
                END IF;
                v_take := least(v_take, v_left);
            END IF;
            r := {schema}.lease_row(r, v_take, p_owner, p_deadline);
            v_left := v_left - v_take;
            RETURN NEXT ROW('lease', p_want.subscription_id, p_want.topic_id, r.token, r.first_offset, r.last_offset,
                            r.attempts + 1, r.due_at, r.suspect, NULL, NULL, NULL, NULL, NULL)::{schema}.claimed;
            IF v_left = 0 OR r.suspect THEN
                RETURN;
            END IF;
        END LOOP;
    END IF;
    -- The cursor is locked only where the head is beyond it: a claim that finds nothing writes nothing and gets no xid.
    SELECT c.next_offset INTO v_next FROM {schema}.cursor c
    WHERE c.subscription_id = p_want.subscription_id AND c.lane = 0
      AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = p_want.subscription_id AND x.lane = 0
                    ORDER BY x.era LIMIT 1)
      AND c.next_offset <= (SELECT h.head FROM {schema}.head h WHERE h.topic_id = p_want.topic_id ORDER BY h.era LIMIT 1)
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- No range covers an offset that may still come. Between gaps there may be one message each: so several ranges are given.
    FOR i IN 1..100 LOOP
        SELECT NULL::bigint AS token, n.first_offset, n.last_offset, n.skipped, n.more INTO v_lease
        FROM {schema}.take_next(p_want.topic_id, p_want.subscription_id, 0, v_next, v_left, p_want.due_from) n;
        IF v_lease.first_offset IS NOT NULL THEN
            v_lease.token := {schema}.new_token();
            INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, owner)
            VALUES (v_lease.token, v_lease.first_offset, v_lease.last_offset, p_deadline, p_want.subscription_id, p_owner);
            RETURN NEXT ROW('lease', p_want.subscription_id, p_want.topic_id, v_lease.token, v_lease.first_offset,
                            v_lease.last_offset, 1, p_deadline, false, NULL, NULL, NULL, NULL, NULL)::{schema}.claimed;
            v_next := v_lease.last_offset + 1;
            v_left := v_left - (v_lease.last_offset - v_lease.first_offset + 1);
        ELSIF v_lease.skipped THEN
            RETURN NEXT {schema}.recheck(p_want.subscription_id, p_want.topic_id, 1);
        END IF;
        EXIT WHEN v_lease.first_offset IS NULL OR NOT v_lease.more OR v_left = 0;
    END LOOP;
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
        -- gap, the head may go there (see functions/head.sql). Bounded, for a transaction of a million publishes; the long way then
        -- notes that the head is stuck, and it is not asked again.
        SELECT CASE WHEN count(*) = max(m.message_offset) - v_head
                         AND (v_gaps_until = 0 OR {schema}.first_ended(v_gaps_seen, pg_current_snapshot()) >= v_gaps_bound)
                    THEN max(m.message_offset) ELSE v_head END
        INTO v_top
        FROM {schema}.shared_messages(v_want.topic_id, v_head + 1,
            v_head + least(p_rows_max, greatest(1000, v_next + p_messages_max[1] - v_head))) m;
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
        SELECT 'lease', p_subscription_ids[1], v_want.topic_id, l.token, l.first_offset, l.last_offset, 1, l.due_at, false, NULL, NULL, NULL, NULL,
               NULL
        INTO v_row FROM leased l;
        IF FOUND THEN
            RETURN NEXT v_row;
            RETURN;
        END IF;
    END IF;
    -- Before the state is read, and until the end: see functions/state.sql.
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
            RAISE EXCEPTION USING ERRCODE = 'HW005', MESSAGE = format(
                'no such subscription: %s; subscribe the group first', p_subscription_ids[i]);
        END IF;
        IF v_status <> 'active' THEN
            RETURN NEXT ROW('inactive', v_want.subscription_id, v_want.topic_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                            NULL, NULL, NULL, v_status)::{schema}.claimed;
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
