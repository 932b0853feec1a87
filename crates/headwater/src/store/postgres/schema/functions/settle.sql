-- Settling and extending, fenced by token, owner and subscription: a slow worker may continue after its lease was reassigned, or
-- after a crash undid the claim. A lease whose deadline has passed is lost even if no other owner has it yet, so that "held" means
-- the same to every process.

-- Logs who acked a range, if the topic keeps an ack log. In the transaction of the ack.
CREATE OR REPLACE FUNCTION {schema}.log_ack(
    p_subscription_id integer, p_first bigint, p_last bigint, p_lane integer, p_owner text, p_now timestamptz
) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.ack_log (topic_id, first_offset, last_offset, group_name, owner, acked_at, lane, lanes)
    SELECT s.topic_id, p_first, p_last, s.group_name, p_owner, p_now, p_lane, s.lanes
    FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
    WHERE s.subscription_id = p_subscription_id AND t.ack_log;
    RETURN FOUND;
END $$;

-- Acks whole leases; returns the tokens that were held, and the topic of those whose lane became free.
--
-- The rows of a lease are found by one token at a time: a plan for a list of tokens may scan the table or another index instead
-- (functions/lease.sql).
--
-- A DELETE locks its row: so this is lock_leases() and the deletion in one, with its argument for repeating the search. A settlement of parts of
-- the same lease that commits meanwhile leaves rows that only a new search finds; reported as held, they would be handed out again.
-- The search compares no deadline: that of a row which an extension is changing is known only once the row is locked.
CREATE OR REPLACE FUNCTION {schema}.settle_all(
    p_tokens bigint[], p_subscription_ids integer[], p_owners text[], p_durable boolean, p_now {schema}.injected_time
) RETURNS TABLE (token bigint, freed_topic_id integer)
LANGUAGE plpgsql SECURITY DEFINER ROWS 1
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_found record;
    v_last {schema}.outstanding;
    r {schema}.outstanding;
BEGIN
    IF NOT p_durable THEN
        -- An ack lost in a power cut only means a redelivery.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    <<search>>
    LOOP
        FOR v_found IN
            SELECT l.token, l.first_offset, l.last_offset, w.subscription_id, w.owner
            FROM unnest(p_tokens, p_subscription_ids, p_owners) AS w (token, subscription_id, owner)
            CROSS JOIN LATERAL (SELECT x.* FROM {schema}.outstanding x WHERE x.token = w.token OFFSET 0) l
            WHERE l.subscription_id = w.subscription_id AND l.owner = w.owner
              AND (v_last.token IS NULL OR (l.subscription_id, coalesce(l.lane, 0), l.first_offset)
                                           > (v_last.subscription_id, coalesce(v_last.lane, 0), v_last.first_offset))
            -- The order of locks (functions/locks.sql).
            ORDER BY l.subscription_id, l.lane, l.first_offset
        LOOP
            DELETE FROM {schema}.outstanding o
            WHERE o.token = v_found.token
              AND (o.token, o.first_offset) BETWEEN (v_found.token, v_found.first_offset) AND (v_found.token, v_found.first_offset)
              AND (o.subscription_id = v_found.subscription_id AND o.owner = v_found.owner AND o.due_at > v_now) IS TRUE
            RETURNING o.* INTO r;
            IF NOT FOUND THEN
                -- The row was replaced, or its deadline has passed. The lock waits for an extension, which may have set a later one: then
                -- a new statement sees that deadline, and deletes the row.
                SELECT o.* INTO r FROM {schema}.outstanding o
                WHERE o.token = v_found.token
                  AND (o.token, o.first_offset) BETWEEN (v_found.token, v_found.first_offset) AND (v_found.token, v_found.first_offset)
                FOR UPDATE;
                CONTINUE search WHEN NOT FOUND
                    OR (r.subscription_id = v_found.subscription_id AND r.owner = v_found.owner AND r.due_at > v_now) IS TRUE;
                -- Lost, and so is what a settlement of parts left of it.
                v_last := r;
                CONTINUE search WHEN r.last_offset <> v_found.last_offset;
                CONTINUE;
            END IF;
            v_last := r;
            token := r.token;
            freed_topic_id := NULL;
            IF r.lane IS NOT NULL THEN
                SELECT s.topic_id INTO freed_topic_id FROM {schema}.subscription s WHERE s.subscription_id = r.subscription_id;
            END IF;
            -- Where no topic keeps an ack log, this is one lookup in an empty index.
            IF EXISTS (SELECT FROM {schema}.topic t WHERE t.ack_log) THEN
                PERFORM {schema}.log_ack(r.subscription_id, r.first_offset, r.last_offset, r.lane, r.owner, v_now);
            END IF;
            RETURN NEXT;
            CONTINUE search WHEN r.last_offset <> v_found.last_offset;
        END LOOP;
        EXIT;
    END LOOP;
END $$;

-- Settles parts of one lease, all or nothing. Outcomes: ack, retry, bury, release, park. Returns the topic, or null if
-- the lease is lost or a part is not held under the token; then nothing has changed.
CREATE OR REPLACE FUNCTION {schema}.settle_parts(
    p_token bigint, p_subscription_id integer, p_owner text, p_firsts bigint[], p_lasts bigint[], p_outcomes text[],
    p_delays_ms bigint[], p_errors text[], p_keys text[], p_durable boolean, p_now {schema}.injected_time,
    p_expected timestamptz DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_held int8multirange;
    v_settled int8multirange;
    v_topic integer;
    v_logs boolean;
    v_part record;
    r {schema}.outstanding;
BEGIN
    IF v_now NOT BETWEEN p_expected - interval '5 seconds' AND p_expected + interval '5 seconds' THEN
        PERFORM {schema}.refuse_step(v_now, p_expected);
    END IF;
    IF NOT p_durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    -- The rows of a lease differ only in their range: the last one stays in r.
    FOR r IN SELECT l.* FROM {schema}.lock_leases(ARRAY[p_token]) l
             WHERE l.subscription_id = p_subscription_id AND l.owner = p_owner AND l.due_at > v_now
    LOOP
        v_held := coalesce(v_held, '{}') + int8multirange(int8range(r.first_offset, r.last_offset, '[]'));
    END LOOP;
    SELECT range_agg(int8range(u.a, u.b, '[]')) INTO v_settled FROM unnest(p_firsts, p_lasts) AS u (a, b);
    IF v_held IS NULL OR NOT v_held @> v_settled THEN
        RETURN NULL;
    END IF;
    SELECT s.topic_id, t.ack_log INTO STRICT v_topic, v_logs
    FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
    WHERE s.subscription_id = r.subscription_id;
    IF v_logs THEN
        PERFORM {schema}.log_ack(r.subscription_id, u.a, u.b, r.lane, r.owner, v_now)
        FROM unnest(p_firsts, p_lasts, p_outcomes) AS u (a, b, outcome) WHERE u.outcome = 'ack';
    END IF;
    DELETE FROM {schema}.outstanding o WHERE o.token = p_token;
    INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, attempts, lane, suspect,
                                      owner, key, last_error)
    SELECT p_token, lower(g), upper(g) - 1, r.due_at, r.subscription_id, r.attempts, r.lane, r.suspect, r.owner, r.key,
           r.last_error
    FROM unnest(v_held - v_settled) g;
    FOR v_part IN SELECT * FROM unnest(p_firsts, p_lasts, p_outcomes, p_delays_ms, p_errors, p_keys)
                  AS u (first, last, outcome, delay_ms, error, key) WHERE u.outcome IS DISTINCT FROM 'ack'
    LOOP
        IF v_part.outcome = 'bury' THEN
            PERFORM {schema}.bury_range(r.subscription_id, v_topic, v_part.first, v_part.last, r.attempts + 1, v_part.error, r.owner, v_now);
        ELSIF v_part.outcome IN ('retry', 'release', 'park') THEN
            INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, attempts, lane,
                                              suspect, parked, owner, key, last_error)
            SELECT {schema}.new_token(), v_part.first, v_part.last,
                   coalesce(v_now + make_interval(secs => v_part.delay_ms / 1000.0), '-infinity'),
                   r.subscription_id, r.attempts + (v_part.outcome = 'retry')::integer, r.lane,
                   r.suspect AND v_part.outcome = 'release', v_part.outcome = 'park', NULL,
                   coalesce(v_part.key, r.key), coalesce(v_part.error, r.last_error);
        ELSE
            RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
                'invalid outcome: %L of offsets %s to %s, must be ack, retry, bury, release or park',
                v_part.outcome, v_part.first, v_part.last);
        END IF;
    END LOOP;
    -- A range may have become claimable without a publish.
    IF r.lane IS NOT NULL OR NOT p_outcomes <@ ARRAY['ack', 'bury'] THEN
        PERFORM {schema}.wake(v_topic, true, false);
    END IF;
    RETURN v_topic;
END $$;

-- Ends a lease for an operator, as if its owner had released it. Returns the topic, or null if there is no such lease.
CREATE OR REPLACE FUNCTION {schema}.release_lease(p_token bigint, p_actor text, p_now {schema}.injected_time) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_subscription integer;
    v_owner text;
    v_first bigint;
    v_last bigint;
    v_topic {schema}.topic;
    v_group text;
BEGIN
    PERFORM {schema}.lock_leases(ARRAY[p_token]);
    SELECT max(o.subscription_id), max(o.owner), min(o.first_offset), max(o.last_offset)
    INTO v_subscription, v_owner, v_first, v_last
    FROM {schema}.outstanding o WHERE o.token = p_token AND o.owner IS NOT NULL AND o.due_at > v_now;
    IF v_subscription IS NULL THEN
        RETURN NULL;
    END IF;
    UPDATE {schema}.outstanding o SET token = {schema}.new_token(), owner = NULL, due_at = '-infinity'
    WHERE o.token = p_token;
    SELECT s.group_name INTO STRICT v_group FROM {schema}.subscription s WHERE s.subscription_id = v_subscription;
    SELECT t.* INTO STRICT v_topic FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
    WHERE s.subscription_id = v_subscription;
    PERFORM {schema}.note_act(p_actor, 'release_lease', v_topic.name, v_group,
        jsonb_build_object('token', p_token, 'owner', v_owner, 'first', v_first, 'last', v_last), v_now);
    PERFORM {schema}.wake(v_topic.topic_id, true, true);
    RETURN v_topic.topic_id;
END $$;

-- Sets new deadlines of leases; returns the tokens that were held.
CREATE OR REPLACE FUNCTION {schema}.extend_leases(
    p_tokens bigint[], p_subscription_ids integer[], p_owners text[], p_lease_ms bigint, p_durable boolean, p_now {schema}.injected_time,
    p_expected timestamptz DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_held record;
BEGIN
    IF v_now NOT BETWEEN p_expected - interval '5 seconds' AND p_expected + interval '5 seconds' THEN
        PERFORM {schema}.refuse_step(v_now, p_expected);
    END IF;
    IF NOT p_durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    -- One token at a time, as in settle_all. All their rows are locked: no update waits, whatever the order.
    PERFORM {schema}.lock_leases(p_tokens);
    FOR v_held IN
        SELECT w.token, w.subscription_id, w.owner FROM unnest(p_tokens, p_subscription_ids, p_owners) AS w (token, subscription_id, owner)
        ORDER BY w.subscription_id, w.token
    LOOP
        UPDATE {schema}.outstanding o
        SET due_at = CASE WHEN p_lease_ms = 0 THEN 'infinity' ELSE v_now + make_interval(secs => p_lease_ms / 1000.0) END
        WHERE o.token = v_held.token
          AND (o.subscription_id = v_held.subscription_id AND o.owner = v_held.owner AND o.due_at > v_now) IS TRUE;
        IF FOUND THEN
            RETURN NEXT v_held.token;
        END IF;
    END LOOP;
END $$;

-- Settles a lease inside the transaction of the handlers. Without p_firsts all of it is acked. Returns the topic, or null if the
-- lease is lost. p_mark was set when the transaction began and ends with it: if a handler committed or rolled back itself, this
-- is detected before anything is acked outside of the transaction.
CREATE OR REPLACE FUNCTION {schema}.settle_inside(
    p_mark text, p_token bigint, p_subscription_id integer, p_owner text, p_firsts bigint[], p_lasts bigint[],
    p_outcomes text[], p_delays_ms bigint[], p_errors text[], p_keys text[], p_now {schema}.injected_time
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_topic integer;
    v_lane integer;
BEGIN
    IF current_setting('headwater.transaction', true) IS DISTINCT FROM p_mark THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid handler: it ended the transaction it was given; '
            'leave BEGIN, COMMIT and ROLLBACK to the consumer';
    END IF;
    IF p_firsts IS NOT NULL THEN
        RETURN {schema}.settle_parts(p_token, p_subscription_id, p_owner, p_firsts, p_lasts, p_outcomes, p_delays_ms,
                                     p_errors, p_keys, true, p_now);
    END IF;
    PERFORM {schema}.lock_leases(ARRAY[p_token]);
    WITH ended AS (
        DELETE FROM {schema}.outstanding o
        WHERE o.token = p_token
          AND (o.subscription_id = p_subscription_id AND o.owner = p_owner AND o.due_at > coalesce(p_now, clock_timestamp())) IS TRUE
        RETURNING o.subscription_id, o.lane, o.first_offset, o.last_offset, o.owner
    )
    SELECT max(s.topic_id), max(e.lane),
           bool_or(CASE WHEN t.ack_log THEN {schema}.log_ack(e.subscription_id, e.first_offset, e.last_offset, e.lane, e.owner,
                                                             coalesce(p_now, clock_timestamp())) END)
    INTO v_topic, v_lane
    FROM ended e JOIN {schema}.subscription s ON s.subscription_id = e.subscription_id
    JOIN {schema}.topic t ON t.topic_id = s.topic_id;
    IF v_lane IS NOT NULL THEN
        -- The lane is free for another owner.
        PERFORM {schema}.wake(v_topic, true, false);
    END IF;
    RETURN v_topic;
END $$;
