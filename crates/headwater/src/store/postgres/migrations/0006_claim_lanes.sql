-- Claiming for subscriptions ordered by key, and the claim that serves many subscriptions at once.

-- The rows a lane may give now, by offset: what is due, and parked rows whose key nothing older blocks.
CREATE FUNCTION {schema}.lane_due(p_subscription_id integer, p_lane integer, p_now timestamptz)
RETURNS SETOF {schema}.outstanding
LANGUAGE sql STABLE AS $$
    SELECT * FROM {schema}.outstanding o
    WHERE o.subscription_id = p_subscription_id AND o.lane = p_lane
      AND CASE WHEN o.parked
               THEN NOT EXISTS (SELECT FROM {schema}.outstanding b WHERE b.subscription_id = p_subscription_id
                                AND b.lane = p_lane AND b.key = o.key AND NOT b.parked)
               ELSE o.due_at <= p_now END
    ORDER BY o.first_offset
$$;

-- One lane that the caller has locked and nobody holds. Strict order per key: a range that is not one key's own (expired,
-- given back) may hold any key, so nothing new is taken before it is done.
CREATE FUNCTION {schema}.claim_lane(
    p_subscription_id integer, p_topic_id integer, p_max_attempts integer, p_offsets_max bigint, p_owner text,
    p_deadline timestamptz, p_now timestamptz, p_lane integer, p_parked_max bigint
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.outstanding;
    v_left bigint := p_offsets_max;
    v_take bigint;
    v_next bigint;
    v_first bigint;
    v_last bigint;
    v_skipped boolean;
    v_given {schema}.claimed[] := '{}';
    v_tokens bigint[] := '{}';
    v_blocked text[];
    v_alone boolean := false;
BEGIN
    FOR r IN SELECT * FROM {schema}.lane_due(p_subscription_id, p_lane, p_now) LOOP
        EXIT WHEN v_left = 0 OR v_alone;
        -- A holder just past its deadline may be settling this row: then nothing after it may overtake it now.
        PERFORM FROM {schema}.outstanding o WHERE o.token = r.token AND o.first_offset = r.first_offset FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        IF r.owner IS NOT NULL THEN
            RETURN NEXT ROW('expired', p_subscription_id, p_topic_id, r.token, r.first_offset, r.last_offset,
                            r.attempts + 1, r.due_at, true, p_lane, NULL, r.owner, NULL)::{schema}.claimed;
            r := {schema}.expire(r, p_max_attempts);
        END IF;
        v_take := least(r.last_offset - r.first_offset + 1, v_left);
        IF r.suspect THEN
            EXIT WHEN v_left < p_offsets_max;
            v_take := {schema}.hand_out_again(r.last_offset - r.first_offset + 1, r.attempts, p_max_attempts);
            IF v_take = 0 THEN
                PERFORM {schema}.bury(p_subscription_id, p_topic_id, r.first_offset, r.last_offset, r.attempts,
                                      format('lease expired %s times; last %s', r.attempts, r.last_error), p_now);
                DELETE FROM {schema}.outstanding o WHERE o.token = r.token AND o.first_offset = r.first_offset;
                RETURN NEXT ROW('buried', p_subscription_id, p_topic_id, r.token, r.first_offset, r.last_offset,
                                r.attempts, NULL, true, p_lane, NULL, r.last_error, NULL)::{schema}.claimed;
                CONTINUE;
            END IF;
            EXIT WHEN EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id
                              AND o.owner = p_owner AND o.due_at > p_now);
            v_take := least(v_take, v_left);
            v_alone := true;
        END IF;
        r := {schema}.lease_row(r, v_take, p_owner, p_deadline);
        v_left := v_left - v_take;
        v_tokens := v_tokens || r.token;
        v_given := v_given || ROW('lease', p_subscription_id, p_topic_id, r.token, r.first_offset, r.last_offset,
                                  r.attempts + 1, r.due_at, r.suspect, p_lane, NULL, NULL, NULL)::{schema}.claimed;
    END LOOP;
    IF cardinality(v_tokens) = 0 AND NOT EXISTS (
            SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id AND o.lane = p_lane AND o.key IS NULL)
       AND (SELECT count(*) FROM {schema}.outstanding o
            WHERE o.subscription_id = p_subscription_id AND o.lane = p_lane AND o.parked) < p_parked_max THEN
        SELECT c.next_offset INTO v_next FROM {schema}.cursor c WHERE c.subscription_id = p_subscription_id AND c.lane = p_lane;
        SELECT n.first_offset, n.last_offset, n.skipped INTO v_first, v_last, v_skipped
        FROM {schema}.take_next(p_topic_id, p_subscription_id, p_lane, v_next, p_offsets_max) n;
        IF v_first IS NOT NULL THEN
            INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, owner, lane)
            VALUES (nextval('{schema}.lease_token'), v_first, v_last, p_deadline, p_subscription_id, p_owner, p_lane)
            RETURNING token INTO r.token;
            v_tokens := ARRAY[r.token];
            v_given := ARRAY[ROW('lease', p_subscription_id, p_topic_id, r.token, v_first, v_last, 1, p_deadline, false,
                                 p_lane, NULL, NULL, NULL)::{schema}.claimed];
        ELSIF v_skipped THEN
            RETURN NEXT ROW('recheck', p_subscription_id, p_topic_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1)::{schema}.claimed;
        END IF;
    END IF;
    IF cardinality(v_tokens) > 0 THEN
        UPDATE {schema}.cursor c SET turn = v_tokens[1] WHERE c.subscription_id = p_subscription_id AND c.lane = p_lane;
        SELECT coalesce(array_agg(DISTINCT o.key), '{}') INTO v_blocked FROM {schema}.outstanding o
        WHERE o.subscription_id = p_subscription_id AND o.lane = p_lane AND o.key IS NOT NULL AND NOT o.token = ANY (v_tokens);
        FOR i IN 1..cardinality(v_given) LOOP
            v_given[i].blocked_keys := v_blocked;
            RETURN NEXT v_given[i];
        END LOOP;
    END IF;
END $$;

-- One subscription with lanes: the lane least recently given out that has something and no holder.
CREATE FUNCTION {schema}.claim_ordered(
    p_subscription_id integer, p_topic_id integer, p_max_attempts integer, p_offsets_max bigint, p_owner text,
    p_deadline timestamptz, p_now timestamptz, p_parked_max bigint
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    v_lane integer;
    v_row {schema}.claimed;
    v_found boolean := false;
BEGIN
    IF EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id AND o.suspect
               AND o.owner = p_owner AND o.due_at > p_now) THEN
        RETURN;
    END IF;
    FOR v_lane IN SELECT c.lane FROM {schema}.cursor c WHERE c.subscription_id = p_subscription_id ORDER BY c.turn, c.lane LOOP
        PERFORM FROM {schema}.cursor c WHERE c.subscription_id = p_subscription_id AND c.lane = v_lane FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        -- Looked up anew under the lock: whoever held the lock before may have leased the lane.
        CONTINUE WHEN EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id
                              AND o.lane = v_lane AND o.owner IS NOT NULL AND o.due_at > p_now);
        FOR v_row IN SELECT * FROM {schema}.claim_lane(p_subscription_id, p_topic_id, p_max_attempts, p_offsets_max,
                                                       p_owner, p_deadline, p_now, v_lane, p_parked_max) LOOP
            v_found := v_found OR v_row.kind = 'lease';
            RETURN NEXT v_row;
        END LOOP;
        EXIT WHEN v_found;
    END LOOP;
END $$;

-- When claiming again may find something although nobody publishes, in milliseconds; null if only a publish can.
CREATE FUNCTION {schema}.recheck_ms(p_subscription_id integer, p_topic_id integer, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_due timestamptz;
    v_later bigint;
    v_soon bigint;
    h {schema}.head;
    v_since timestamptz;
BEGIN
    SELECT least(
        (SELECT min(o.due_at) FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id
         AND o.due_at > p_now AND NOT o.parked AND o.due_at < 'infinity'),
        (SELECT min(s.deliver_at) FROM {schema}.schedule s WHERE s.topic_id = p_topic_id)) INTO v_due;
    v_later := greatest(ceil(extract(epoch FROM v_due - p_now) * 1000), 1)::bigint;
    SELECT * INTO h FROM {schema}.head e WHERE e.topic_id = p_topic_id;
    IF h.gaps_until > 0
       OR h.head < (SELECT coalesce(pg_sequence_last_value(t.offsets), 0) FROM {schema}.topic t WHERE t.topic_id = p_topic_id) THEN
        -- Somebody's commit is under way. Young ones end soon; old ones are looked at ever more rarely.
        v_since := coalesce(CASE WHEN h.stuck_at IS NOT NULL THEN h.stuck_since END,
                            (SELECT max(g.noted_at) FROM {schema}.gap g WHERE g.topic_id = p_topic_id), clock_timestamp());
        v_soon := least(greatest(extract(epoch FROM clock_timestamp() - v_since) * 1000 / 4, 2), 100)::bigint;
    END IF;
    IF EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id AND o.due_at <= p_now AND NOT o.parked) THEN
        -- Due but not given: a suspect range waits until this owner holds nothing else, or a lane for its holder.
        v_soon := least(v_soon, 50);
    END IF;
    RETURN least(v_later, v_soon);
END $$;

-- Claims for many subscriptions of one owner, in the order of their ids, so that two claims wait for each other's
-- cursors in one order. Heads are advanced before any cursor is locked.
CREATE FUNCTION {schema}.claim(
    p_owner text, p_subscription_ids integer[], p_messages_max integer[], p_lease_ms bigint[], p_durable boolean,
    p_promote_max integer, p_rows_max integer, p_gaps_max bigint, p_parked_max bigint, p_now timestamptz
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_topics integer[];
    v_topic integer;
    v_skipped boolean := false;
    v_want record;
    v_row {schema}.claimed;
    v_deadline timestamptz;
    v_found boolean;
BEGIN
    -- A claim lost in a power cut only means that the range is handed out again.
    IF NOT p_durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    FOR v_topic IN SELECT DISTINCT s.topic_id FROM {schema}.subscription s
            WHERE s.subscription_id = ANY (p_subscription_ids)
              AND EXISTS (SELECT FROM {schema}.schedule d WHERE d.topic_id = s.topic_id AND d.deliver_at <= v_now) LOOP
        PERFORM {schema}.promote(v_topic, p_promote_max, v_now);
    END LOOP;
    SELECT array_agg(DISTINCT c.topic_id) INTO v_topics
    FROM unnest(p_subscription_ids, p_messages_max) AS u (id, n)
    JOIN {schema}.cursor c ON c.subscription_id = u.id
    JOIN {schema}.head h ON h.topic_id = c.topic_id
    WHERE c.next_offset + u.n > h.head + 1
       OR h.gaps_until > 0 AND coalesce(h.gaps_checked_at < clock_timestamp() - interval '5 milliseconds', true);
    IF v_topics IS NOT NULL THEN
        SELECT a.skipped INTO v_skipped FROM {schema}.advance(v_topics, p_rows_max, p_gaps_max) a;
    END IF;
    FOR v_want IN
        SELECT u.id, u.n, coalesce(u.l, t.lease_ms) AS lease_ms, s.topic_id, s.lanes, t.max_attempts
        FROM unnest(p_subscription_ids, p_messages_max, p_lease_ms) AS u (id, n, l)
        LEFT JOIN {schema}.subscription s ON s.subscription_id = u.id
        LEFT JOIN {schema}.topic t ON t.topic_id = s.topic_id
        ORDER BY u.id
    LOOP
        IF v_want.topic_id IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'HW005', MESSAGE = format('no such subscription: %s', v_want.id);
        END IF;
        v_found := false;
        v_deadline := CASE WHEN v_want.lease_ms = 0 THEN 'infinity'
                           ELSE v_now + make_interval(secs => v_want.lease_ms / 1000.0) END;
        IF v_want.lanes = 0 THEN
            FOR v_row IN SELECT * FROM {schema}.claim_plain(v_want.id, v_want.topic_id, v_want.max_attempts, v_want.n,
                                                            p_owner, v_deadline, v_now) LOOP
                v_found := v_found OR v_row.kind = 'lease';
                RETURN NEXT v_row;
            END LOOP;
        ELSE
            FOR v_row IN SELECT * FROM {schema}.claim_ordered(v_want.id, v_want.topic_id, v_want.max_attempts,
                                                              v_want.n::bigint * v_want.lanes, p_owner, v_deadline, v_now,
                                                              p_parked_max) LOOP
                v_found := v_found OR v_row.kind = 'lease';
                RETURN NEXT v_row;
            END LOOP;
        END IF;
        IF NOT v_found THEN
            RETURN NEXT ROW('recheck', v_want.id, v_want.topic_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                            CASE WHEN v_skipped THEN 1 ELSE {schema}.recheck_ms(v_want.id, v_want.topic_id, v_now) END)::{schema}.claimed;
        END IF;
    END LOOP;
END $$;
