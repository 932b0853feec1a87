-- Settling what plain SQL has read (functions/read.sql): ack, retry, bury, release, extend. Every call is checked: what is not held
-- under the token is an error (HW020: no such lease, HW021: not in the lease), and nothing is changed.
--
-- They are for the caller's own transaction: its effects and the settlement commit together or not at all, so each message has its
-- effect once. A rollback leaves the lease as it was.
--
-- Locks. A settlement locks the rows of its lease and nothing else of Headwater that another session waits for, except operators
-- (seek, cancel, release), which hold locks of Headwater only. It waits for no claim: a claim skips rows that are locked. So a
-- settlement at the end of a long transaction blocks nothing but such operators until the commit, and no cycle of waits contains it unless
-- two transactions settle the same leases in opposite order, or settle and wait for each other's own rows.

-- Locks a lease and returns it: one of its rows, which differ only in their ranges, and its offsets.
--
-- Leases of the library are refused: their owners count on what they hold. The token is checked in the newest version of the row: a
-- claim that handed out an expired range again gave it another token.
CREATE OR REPLACE FUNCTION {schema}.hold_lease(p_token bigint, OUT lease {schema}.outstanding, OUT held int8multirange)
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.outstanding;
BEGIN
    FOR r IN SELECT l.* FROM {schema}.lock_leases(ARRAY[p_token]) l LOOP
        lease := r;
        held := coalesce(held, '{}') + int8multirange(int8range(r.first_offset, r.last_offset, '[]'));
    END LOOP;
    IF held IS NULL OR lease.owner IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW020', MESSAGE = format(
            'lease lost: token %s holds nothing; its messages are settled, it has expired, or it was never issued', p_token);
    ELSIF NOT starts_with(lease.owner, 'sql ') THEN
        RAISE EXCEPTION USING ERRCODE = 'HW020', MESSAGE = format(
            'lease lost: token %s belongs to the process %s, which settles it', p_token, lease.owner);
    ELSIF lease.due_at <= clock_timestamp() THEN
        RAISE EXCEPTION USING ERRCODE = 'HW020', MESSAGE = format(
            'lease lost: token %s expired at %s; use a longer lease_s, or extend it in time', p_token, lease.due_at);
    END IF;
END $$;

-- Refuses offsets that are not held.
CREATE OR REPLACE FUNCTION {schema}.check_held(p_token bigint, p_held int8multirange, p_offsets bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_offset bigint;
BEGIN
    IF cardinality(p_offsets) = 0 OR array_position(p_offsets, NULL) IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid offsets: must be at least one, and none null; '
            'leave them out to ack everything under the token';
    END IF;
    SELECT min(u) INTO v_offset FROM unnest(p_offsets) u WHERE NOT p_held @> u;
    IF v_offset IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW021', MESSAGE = format(
            'not in the lease: token %s does not hold offset %s, which is settled already or was read under another token; it holds %s',
            p_token, v_offset, p_held);
    END IF;
END $$;

-- Takes offsets out of a lease that the caller has locked. Only rows that have some of them are written.
CREATE OR REPLACE FUNCTION {schema}.take_out(p_token bigint, p_offsets bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_out int8multirange := (SELECT range_agg(int8range(u, u, '[]')) FROM unnest(p_offsets) u);
BEGIN
    WITH hit AS (
        DELETE FROM {schema}.outstanding o
        WHERE o.token = p_token AND v_out && int8range(o.first_offset, o.last_offset, '[]')
        RETURNING o.*
    )
    INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, attempts, lane, suspect, owner, key,
                                      last_error)
    SELECT h.token, lower(g), upper(g) - 1, h.due_at, h.subscription_id, h.attempts, h.lane, h.suspect, h.owner, h.key, h.last_error
    FROM hit h CROSS JOIN LATERAL unnest(int8multirange(int8range(h.first_offset, h.last_offset, '[]')) - v_out) g;
END $$;

-- Acks messages of a lease, or without offsets all that it still holds. Returns how many. The second is one statement for a lease of one
-- row. Several rows are locked first, as a DELETE alone takes them in the order in which its plan finds them, and so is what is left of a
-- row that another session replaced meanwhile; hold_lease() also reports what is not held.
CREATE OR REPLACE FUNCTION {schema}.ack(token bigint, offsets bigint[] DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_variable
DECLARE
    h record;
    v_lease {schema}.outstanding;
    v_is_locked boolean := false;
    v_acked bigint;
BEGIN
    IF offsets IS NULL THEN
        LOOP
            WITH ended AS (
                DELETE FROM {schema}.outstanding o
                WHERE o.token = ack.token AND (starts_with(o.owner, 'sql ') AND o.due_at > clock_timestamp()) IS TRUE
                  AND (v_is_locked OR 1 = (SELECT count(*) FROM {schema}.outstanding l WHERE l.token = ack.token))
                RETURNING o.subscription_id, o.first_offset, o.last_offset, o.lane, o.owner
            )
            SELECT sum(e.last_offset - e.first_offset + 1), max(e.subscription_id), max(e.lane),
                   -- Evaluated once: where no topic keeps an ack log, none is called for.
                   bool_or(CASE WHEN (SELECT EXISTS (SELECT FROM {schema}.topic t WHERE t.ack_log))
                                THEN {schema}.log_ack(e.subscription_id, e.first_offset, e.last_offset, e.lane, e.owner, clock_timestamp()) END)
            INTO v_acked, v_lease.subscription_id, v_lease.lane, v_lease.parked FROM ended e;
            EXIT WHEN v_acked IS NOT NULL;
            PERFORM {schema}.hold_lease(token);
            v_is_locked := true;
        END LOOP;
    ELSE
        SELECT * INTO h FROM {schema}.hold_lease(token);
        v_lease := h.lease;
        PERFORM {schema}.check_held(token, h.held, offsets);
        PERFORM {schema}.take_out(token, offsets);
        SELECT sum(upper(g) - lower(g)),
               bool_or(CASE WHEN (SELECT EXISTS (SELECT FROM {schema}.topic t WHERE t.ack_log))
                            THEN {schema}.log_ack(v_lease.subscription_id, lower(g), upper(g) - 1, v_lease.lane, v_lease.owner, clock_timestamp()) END)
        INTO v_acked, v_lease.parked
        FROM (SELECT range_agg(int8range(u, u, '[]')) AS acked FROM unnest(offsets) u) q CROSS JOIN LATERAL unnest(q.acked) g;
    END IF;
    IF v_lease.lane IS NOT NULL THEN
        -- The lane may be free for others.
        PERFORM {schema}.wake(s.topic_id, false, false) FROM {schema}.subscription s WHERE s.subscription_id = v_lease.subscription_id;
    END IF;
    RETURN v_acked;
END $$;

-- An error's text within the limit of the library (limits.rs). A character has at most four bytes.
CREATE OR REPLACE FUNCTION {schema}.bounded_error(p_error text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN octet_length(p_error) <= 65536 THEN p_error ELSE left(p_error, 16380) || ' … (cut)' END
$$;

-- Makes a dead letter of one message of a lease, for this group.
CREATE OR REPLACE FUNCTION {schema}.bury(token bigint, message_offset bigint, error text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_variable
DECLARE
    h record;
    v_lease {schema}.outstanding;
    v_topic integer;
BEGIN
    IF error IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid error: must not be null; it is shown with the dead letter';
    END IF;
    SELECT * INTO h FROM {schema}.hold_lease(token);
    v_lease := h.lease;
    PERFORM {schema}.check_held(token, h.held, ARRAY[message_offset]);
    SELECT s.topic_id INTO STRICT v_topic FROM {schema}.subscription s WHERE s.subscription_id = v_lease.subscription_id;
    PERFORM {schema}.take_out(token, ARRAY[message_offset]);
    PERFORM {schema}.bury_range(v_lease.subscription_id, v_topic, message_offset, message_offset, v_lease.attempts + 1,
                                {schema}.bounded_error(error), v_lease.owner, clock_timestamp());
    IF v_lease.lane IS NOT NULL THEN
        PERFORM {schema}.wake(v_topic, false, false);
    END IF;
END $$;

-- After which time a failed message is handed out again: the rule of settle.rs. Between half and all of the back-off, so that
-- messages that failed together do not return together.
CREATE OR REPLACE FUNCTION {schema}.backoff_ms(p_attempt integer, p_initial_ms bigint, p_max_ms bigint) RETURNS double precision
LANGUAGE sql VOLATILE AS $$
    SELECT least(p_initial_ms * 2 ^ least(p_attempt - 1, 31), p_max_ms) * (0.5 + 0.5 * random())
$$;

-- Hands one message of a lease out again after a delay, which is an attempt that failed; null means the group's back-off. At its last
-- attempt it becomes a dead letter. In an ordered group, later messages of its key that this lease holds are handed out after it:
-- "held_back" has their offsets, which must not be handled now and can no longer be settled under this token.
CREATE OR REPLACE FUNCTION {schema}.retry(
    token bigint, message_offset bigint, delay_s double precision DEFAULT NULL, error text DEFAULT NULL,
    OUT outcome text, OUT held_back bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_variable
DECLARE
    h record;
    v_lease {schema}.outstanding;
    v_error text := {schema}.bounded_error(coalesce(error, 'retried without an error text'));
    v_key text;
    v_delay_ms double precision;
    p record;
BEGIN
    IF delay_s < 0 OR delay_s > 31622400 THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
            'invalid delay_s: %s, must be from 0 to 31622400 (366 days); null means the back-off of the group', delay_s);
    END IF;
    held_back := '{}';
    SELECT * INTO h FROM {schema}.hold_lease(token);
    v_lease := h.lease;
    SELECT s.topic_id, coalesce(s.max_attempts, t.max_attempts) AS max_attempts,
           coalesce(s.backoff_initial_ms, (t.settings ->> 'backoff_initial_ms')::bigint) AS initial_ms,
           coalesce(s.backoff_max_ms, (t.settings ->> 'backoff_max_ms')::bigint) AS max_ms
    INTO STRICT p
    FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id WHERE s.subscription_id = v_lease.subscription_id;
    IF v_lease.attempts + 1 >= p.max_attempts THEN
        PERFORM {schema}.bury(token, message_offset, v_error);
        outcome := 'buried';
        RETURN;
    END IF;
    PERFORM {schema}.check_held(token, h.held, ARRAY[message_offset]);
    IF v_lease.lane IS NOT NULL THEN
        SELECT k.key, k.later INTO v_key, held_back FROM {schema}.later_of_key(p.topic_id, message_offset, h.held) k;
    END IF;
    PERFORM {schema}.take_out(token, held_back || message_offset);
    v_delay_ms := coalesce(delay_s * 1000, {schema}.backoff_ms(v_lease.attempts + 1, p.initial_ms, p.max_ms));
    INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, attempts, lane, parked, key, last_error)
    VALUES ({schema}.new_token(), message_offset, message_offset, clock_timestamp() + make_interval(secs => v_delay_ms / 1000),
            v_lease.subscription_id, v_lease.attempts + 1, v_lease.lane, false, v_key, v_error);
    INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, attempts, lane, parked, key, last_error)
    SELECT {schema}.new_token(), u, u, '-infinity', v_lease.subscription_id, v_lease.attempts, v_lease.lane, true, v_key, v_lease.last_error
    FROM unnest(held_back) u;
    PERFORM {schema}.wake(p.topic_id, false, false);
    outcome := 'retried';
END $$;

-- Gives back what a lease still holds: due at once, and not counted as an attempt. Returns how many messages. For a program that ends.
CREATE OR REPLACE FUNCTION {schema}.release(token bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_variable
DECLARE
    h record;
    v_lease {schema}.outstanding;
BEGIN
    SELECT * INTO h FROM {schema}.hold_lease(token);
    v_lease := h.lease;
    UPDATE {schema}.outstanding o SET token = {schema}.new_token(), owner = NULL, due_at = '-infinity' WHERE o.token = release.token;
    PERFORM {schema}.wake(s.topic_id, false, false) FROM {schema}.subscription s WHERE s.subscription_id = v_lease.subscription_id;
    RETURN (SELECT sum(upper(g) - lower(g)) FROM unnest(h.held) g);
END $$;

-- Sets a new deadline of a lease, so many seconds from now, and returns it.
CREATE OR REPLACE FUNCTION {schema}.extend(token bigint, lease_s double precision) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_variable
DECLARE
    v_deadline timestamptz := clock_timestamp() + make_interval(secs => lease_s);
BEGIN
    IF lease_s IS NULL OR lease_s <= 0 OR lease_s > 31622400 THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
            'invalid lease_s: %s, must be above 0 and at most 31622400 (366 days)', lease_s);
    END IF;
    PERFORM {schema}.hold_lease(token);
    UPDATE {schema}.outstanding o SET due_at = v_deadline WHERE o.token = extend.token;
    RETURN v_deadline;
END $$;
