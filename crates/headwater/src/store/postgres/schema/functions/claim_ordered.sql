-- Claiming for subscriptions ordered by key.

-- The lane of a message, of its key or without a key of its id: the same as `lane_of` in message.rs.
CREATE OR REPLACE FUNCTION {schema}.lane_of(p_key text, p_message_id uuid, p_lanes integer) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT (('x' || encode(substring(sha256(coalesce(convert_to(p_key, 'UTF8'), uuid_send(p_message_id))) FROM 1 FOR 4), 'hex'))::bit(32)::bigint
            % p_lanes)::integer
$$;

-- The rows that may be handed out for a lane now, by offset: due rows, and parked rows whose key no older row blocks. Of each key
-- only the oldest: if a second one were handed out too, it could be handled although the first failed.
CREATE OR REPLACE FUNCTION {schema}.lane_due(p_subscription_id integer, p_lane integer, p_now timestamptz)
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

-- Claims one lane that the caller has locked and no owner has leased. Strict order per key: a range that does not belong to one key
-- (expired, released, late) may contain any key, so nothing new is taken before it is done.
CREATE OR REPLACE FUNCTION {schema}.claim_lane(
    p_want {schema}.want, p_lane integer, p_owner text, p_deadline timestamptz, p_now timestamptz, p_parked_max bigint
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.outstanding;
    v_max bigint := p_want.messages_max * p_want.lanes;
    v_left bigint := v_max;
    -- Messages that the limits of the group allow; null without limits. A row of one key is one message, whatever the number of
    -- lanes.
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
        -- Rows of one key and ranges of any key are never handed out together: they are blocked by different things.
        EXIT WHEN v_left = 0 OR v_room = 0 OR v_left < v_max AND v_keyed <> (r.key IS NOT NULL);
        v_keyed := r.key IS NOT NULL;
        -- An owner just past its deadline may be settling or extending this row: then nothing after it may overtake it
        -- now. The locked row is read again: it may have been settled in part meanwhile.
        SELECT * INTO r FROM {schema}.outstanding o
        WHERE o.token = r.token AND (o.token, o.first_offset) BETWEEN (r.token, r.first_offset) AND (r.token, r.first_offset)
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
                -- Its attempts are used up. Only the client can compute whether the message is of this lane, so the client
                -- settles it: buried, or acked if it is another lane's.
                UPDATE {schema}.outstanding o SET attempts = r.attempts - 1
                WHERE o.token = r.token AND (o.token, o.first_offset) BETWEEN (r.token, r.first_offset) AND (r.token, r.first_offset);
                r := {schema}.lease_row(r, 1, p_owner, p_deadline);
                RETURN NEXT {schema}.note('used_up', r, {schema}.lost_leases(r));
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
                                  r.attempts + 1, r.due_at, r.suspect, p_lane, NULL, NULL, NULL, NULL)::{schema}.claimed;
        -- Only one range of any key: a key that fails in it may also be in the next one.
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
            -- Checked again, after head and gaps were read: since the first check another session may have searched a gap, or
            -- moved the head, and handed out a late message. The new range would contain a later message of the same transaction.
            -- The late one is handed out first, and the cursor, which is locked, stays where that session has seen it.
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
                                 v_new.last_offset, 1, p_deadline, false, p_lane, NULL, NULL, NULL, NULL)::{schema}.claimed];
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

-- Claims for one subscription with lanes: the least recently handed out lane that has messages and is not leased.
CREATE OR REPLACE FUNCTION {schema}.claim_ordered(
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
        -- First without the lock: a claim that finds nothing writes nothing and gets no xid. A range that becomes claimable after
        -- this check wakes the waiters.
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
        -- Checked again under the lock: the session that held the lock before may have leased the lane.
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
