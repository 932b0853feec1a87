-- The life of topics and subscriptions: states, heartbeats, cursors moved by hand.
--
-- In which order they lock, and how claims are held apart, is at the top of 0014_life_cycle_tables.

-- The cursors follow the subscription, whoever changes it.
CREATE FUNCTION {schema}.follow_subscription() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    -- In the order of locks: the UPDATE takes lanes as its plan finds them.
    PERFORM FROM {schema}.cursor c WHERE c.subscription_id = NEW.subscription_id ORDER BY c.lane FOR UPDATE;
    UPDATE {schema}.cursor c SET active = NEW.status = 'active', lease_ms = NEW.lease_ms
    WHERE c.subscription_id = NEW.subscription_id;
    RETURN NULL;
END $$;
CREATE TRIGGER cursor_follows AFTER UPDATE OF status, lease_ms ON {schema}.subscription
    FOR EACH ROW WHEN ((OLD.status, OLD.lease_ms) IS DISTINCT FROM (NEW.status, NEW.lease_ms))
    EXECUTE FUNCTION {schema}.follow_subscription();

-- Small or empty: whether any topic keeps an ack log is asked by every ack.
CREATE INDEX topic_ack_log ON {schema}.topic (topic_id) WHERE ack_log;

-- The subscription of a group: the living one, or else the last that was cancelled.
CREATE FUNCTION {schema}.find_subscription(p_topic text, p_group text) RETURNS {schema}.subscription
LANGUAGE plpgsql AS $$
DECLARE
    s {schema}.subscription;
    v_topic integer;
BEGIN
    SELECT t.topic_id INTO v_topic FROM {schema}.topic t WHERE t.name = p_topic;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = format('no such topic: %s', p_topic);
    END IF;
    SELECT * INTO s FROM {schema}.subscription x WHERE x.topic_id = v_topic AND x.group_name = p_group
    ORDER BY x.status = 'cancelled', x.subscription_id DESC LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW005', MESSAGE = format(
            'no such subscription: topic %s, group %s; see `headwater group list %1$s`', p_topic, p_group);
    END IF;
    RETURN s;
END $$;

-- What was published while no subscription counted has a least life of its own: see extent.zero_until.
CREATE FUNCTION {schema}.count_again(p_topic_id integer) RETURNS void
LANGUAGE sql AS $$
    UPDATE {schema}.extent e SET zero_until = {schema}.last_taken(p_topic_id) WHERE e.topic_id = p_topic_id AND e.zero_until IS NULL
$$;

CREATE FUNCTION {schema}.count_no_more(p_topic_id integer) RETURNS void
LANGUAGE sql AS $$
    UPDATE {schema}.extent e SET zero_until = NULL, zero_from = {schema}.last_taken(p_topic_id) + 1
    WHERE e.topic_id = p_topic_id AND e.zero_until IS NOT NULL AND NOT EXISTS (
        SELECT FROM {schema}.subscription s JOIN {schema}.topic t USING (topic_id) WHERE topic_id = p_topic_id AND {schema}.counts(s.status, t.semantics))
$$;

-- What a subscription has not done, without end.
CREATE FUNCTION {schema}.pending_of(p_subscription_id integer) RETURNS int8multirange
LANGUAGE sql STABLE AS $$
    SELECT int8multirange(int8range(min(c.next_offset), NULL)) + coalesce(
        (SELECT range_agg(int8range(o.first_offset, o.last_offset, '[]')) FROM {schema}.outstanding o
         WHERE o.subscription_id = p_subscription_id), '{}')
    FROM {schema}.cursor c WHERE c.subscription_id = p_subscription_id
$$;

-- Everything at or below is done for every subscription that lives; the head without one.
CREATE FUNCTION {schema}.watermark_of(p_topic_id integer) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT least(h.head, (SELECT min({schema}.floor_of(s.subscription_id)) FROM {schema}.subscription s
                          WHERE s.topic_id = p_topic_id AND s.status IN ('active', 'paused')))
    FROM {schema}.head h WHERE h.topic_id = p_topic_id
$$;

-- How many messages of a set of offsets are stored, the first and the last of them.
CREATE FUNCTION {schema}.stored_in(
    p_topic_id integer, p_offsets int8multirange, OUT messages bigint, OUT first_offset bigint, OUT last_offset bigint
)
LANGUAGE sql STABLE AS $$
    SELECT count(*), min(m.message_offset), max(m.message_offset)
    FROM unnest(p_offsets) r
    -- Range by range, by the log's index.
    CROSS JOIN LATERAL (SELECT x.message_offset FROM {schema}.message x WHERE x.topic_id = p_topic_id
                        AND x.message_offset >= lower(r) AND (upper_inf(r) OR x.message_offset < upper(r)) OFFSET 0) m
$$;

-- Forgets what a subscription has outstanding below an offset; how many leases were lost. The caller holds its cursors, the
-- topic's head, and claims apart (hold_claims): nobody else inserts rows but a settlement that splits a row it holds.
-- As long as that has not committed, the row it splits is there for a new look; afterwards what it inserted is. So when
-- a look finds nothing there is nothing. What was removed does not tell: the row that was waited for may be gone.
--
-- Each round locks all of it first, in the order of locks, as settlements and extensions of several leases do. If a settlement
-- inserted rows meanwhile, the round lets go of what it locked and begins anew: those may come before one that it has.
CREATE FUNCTION {schema}.forget_outstanding(p_subscription_id integer, p_below bigint, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_lost bigint[] := '{}';
    v_tokens bigint[];
    v_locked tid[];
BEGIN
    WHILE EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id AND o.first_offset < p_below) LOOP
        BEGIN
            v_locked := ARRAY(
                SELECT o.ctid FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id AND o.first_offset < p_below
                ORDER BY o.lane, o.first_offset FOR UPDATE);
            IF cardinality(v_locked) <> (SELECT count(*) FROM {schema}.outstanding o
                                         WHERE o.subscription_id = p_subscription_id AND o.first_offset < p_below) THEN
                RAISE EXCEPTION USING ERRCODE = 'HW000';
            END IF;
        EXCEPTION
            WHEN SQLSTATE 'HW000' THEN CONTINUE;
        END;
        WITH gone AS (
            DELETE FROM {schema}.outstanding o WHERE o.ctid = ANY (v_locked) AND o.last_offset < p_below
            RETURNING o.token, o.owner, o.due_at
        )
        SELECT array_agg(g.token) INTO v_tokens FROM gone g WHERE g.owner IS NOT NULL AND g.due_at > p_now;
        v_lost := v_lost || v_tokens;
        UPDATE {schema}.outstanding o SET first_offset = p_below
        WHERE o.ctid = ANY (v_locked) AND o.first_offset < p_below AND o.last_offset >= p_below;
    END LOOP;
    RETURN (SELECT count(DISTINCT t) FROM unnest(v_lost) t);
END $$;

-- Moves a subscription up to an offset: what is below is given up. Runs under the locks of extent and head.
CREATE FUNCTION {schema}.give_up_below(p_subscription_id integer, p_next bigint, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.cursor c SET next_offset = greatest(c.next_offset, p_next) WHERE c.subscription_id = p_subscription_id;
    PERFORM {schema}.forget_outstanding(p_subscription_id, p_next, p_now);
END $$;

-- Pauses, resumes or cancels. Compare and set: if the state is none of p_from nothing changes and the state is told.
--
-- Cancelling takes the lock of the head too: a late row is not handed to it any more once its ranges are removed.
CREATE FUNCTION {schema}.shift(
    p_topic text, p_group text, p_act text, p_from text[], p_to text, p_actor text, p_now timestamptz,
    OUT topic_id integer, OUT state text, OUT shifted boolean
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    s {schema}.subscription := {schema}.find_subscription(p_topic, p_group);
    v_lost bigint := 0;
BEGIN
    topic_id := s.topic_id;
    IF p_to = 'cancelled' THEN
        PERFORM {schema}.lock_extent(s.topic_id);
        PERFORM FROM {schema}.head h WHERE h.topic_id = s.topic_id FOR UPDATE;
    END IF;
    PERFORM {schema}.hold_claims(ARRAY[s.subscription_id], true);
    -- What was paused is as if it had just beaten: its processes have the time of a whole timeout to come back.
    UPDATE {schema}.subscription x
    SET status = p_to, status_at = v_now,
        heartbeat_at = CASE WHEN p_to = 'active' AND x.heartbeat_at < v_now THEN v_now ELSE x.heartbeat_at END
    WHERE x.subscription_id = s.subscription_id AND x.status = ANY (p_from);
    shifted := FOUND;
    IF NOT shifted THEN
        SELECT x.status INTO state FROM {schema}.find_subscription(p_topic, p_group) x;
        RETURN;
    END IF;
    state := p_to;
    IF p_to = 'cancelled' THEN
        v_lost := {schema}.forget_outstanding(s.subscription_id, 9223372036854775807, v_now);
        PERFORM {schema}.end_accounting(s.subscription_id);
    END IF;
    PERFORM {schema}.note_act(p_actor, p_act, p_topic, p_group, jsonb_build_object('from', s.status, 'leases_lost', v_lost), v_now);
    -- Without looking for a flag: one that is raised while this runs is not seen, and operators are rare.
    PERFORM {schema}.wake(s.topic_id, true, true);
END $$;

-- Deletes what was cancelled under a group's name and is released from the records, after the steps of empty_cancelled. Returns the
-- state it found and how many it deleted.
CREATE FUNCTION {schema}.remove_subscription(
    p_topic text, p_group text, p_before bigint, p_actor text, p_now timestamptz, OUT state text, OUT removed bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s {schema}.subscription := {schema}.find_subscription(p_topic, p_group);
    v_ids integer[];
BEGIN
    PERFORM {schema}.lock_extent(s.topic_id);
    SELECT array_agg(x.subscription_id) INTO v_ids FROM {schema}.subscription x
    WHERE x.topic_id = s.topic_id AND x.group_name = p_group AND x.status = 'cancelled' AND x.released_until IS NULL;
    removed := coalesce(cardinality(v_ids), 0);
    IF removed = 0 THEN
        SELECT CASE WHEN bool_or(x.status = 'cancelled') THEN 'cancelled' ELSE max(x.status) END INTO state
        FROM {schema}.subscription x WHERE x.topic_id = s.topic_id AND x.group_name = p_group;
        IF p_before > 0 THEN
            PERFORM {schema}.note_act(p_actor, 'remove', p_topic, p_group, jsonb_build_object('dead_letters', p_before), p_now);
        END IF;
        RETURN;
    END IF;
    state := 'cancelled';
    PERFORM {schema}.note_act(p_actor, 'remove', p_topic, p_group, jsonb_build_object('dead_letters', p_before +
        (SELECT count(*) FROM {schema}.dead_letter d WHERE d.subscription_id = ANY (v_ids))), p_now);
    DELETE FROM {schema}.dead_letter d WHERE d.subscription_id = ANY (v_ids);
    DELETE FROM {schema}.outstanding o WHERE o.subscription_id = ANY (v_ids);
    DELETE FROM {schema}.subscription x WHERE x.subscription_id = ANY (v_ids);
END $$;

-- Brings a dead subscription back; false if it is not dead. Runs under the lock of the extent, so one of many does it. Its
-- heartbeat begins anew: a process has its full timeout to speak.
CREATE FUNCTION {schema}.revive(p_subscription_id integer, p_behind_max bigint, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_topic integer;
    v_next bigint;
BEGIN
    SELECT s.topic_id INTO v_topic FROM {schema}.subscription s WHERE s.subscription_id = p_subscription_id AND s.status = 'dead';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT greatest(e.first_offset, h.head - p_behind_max + 1) INTO STRICT v_next
    FROM {schema}.head h JOIN {schema}.extent e ON e.topic_id = h.topic_id WHERE h.topic_id = v_topic FOR UPDATE OF h;
    PERFORM {schema}.hold_claims(ARRAY[p_subscription_id], true);
    UPDATE {schema}.subscription s
    SET status = 'active', status_at = p_now, heartbeat_at = p_now, suspected_at = NULL,
        -- What is given up so does not come late either.
        start_offset = CASE WHEN p_behind_max IS NULL THEN s.start_offset ELSE greatest(s.start_offset, v_next) END
    WHERE s.subscription_id = p_subscription_id AND s.status = 'dead';
    IF p_behind_max IS NULL THEN
        -- Ranges below the first offset stored are left alone: they may be leased, and are found empty.
        UPDATE {schema}.cursor c SET next_offset = greatest(c.next_offset, v_next) WHERE c.subscription_id = p_subscription_id;
    ELSE
        PERFORM {schema}.give_up_below(p_subscription_id, v_next, p_now);
    END IF;
    PERFORM {schema}.count_again(v_topic);
    PERFORM {schema}.begin_accounting(p_subscription_id, p_now) FROM {schema}.topic t WHERE t.topic_id = v_topic AND t.semantics <> 'queue';
    PERFORM {schema}.wake(v_topic, true, true);
    RETURN true;
END $$;

-- An operator brings a dead subscription back.
CREATE FUNCTION {schema}.resurrect(
    p_topic text, p_group text, p_behind_max bigint, p_actor text, p_now timestamptz,
    OUT topic_id integer, OUT state text, OUT resurrected boolean, OUT next_offset bigint, OUT missed bigint,
    OUT missed_first bigint, OUT missed_last bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    s {schema}.subscription := {schema}.find_subscription(p_topic, p_group);
BEGIN
    PERFORM {schema}.lock_extent(s.topic_id);
    -- Looked up anew under the lock: another may have brought it back, or cancelled it.
    s := {schema}.find_subscription(p_topic, p_group);
    topic_id := s.topic_id;
    state := s.status;
    missed := s.missed;
    missed_first := s.missed_first;
    missed_last := s.missed_last;
    resurrected := {schema}.revive(s.subscription_id, p_behind_max, v_now);
    SELECT min(c.next_offset) INTO next_offset FROM {schema}.cursor c WHERE c.subscription_id = s.subscription_id;
    IF resurrected THEN
        PERFORM {schema}.note_act(p_actor, 'resurrect', p_topic, p_group,
            jsonb_build_object('behind_max', p_behind_max, 'next', next_offset, 'missed', missed), v_now);
    END IF;
END $$;

-- A process says that it is alive and serves these subscriptions. One row for each, in their order.
--
-- First the dead, because their extents are locked before anything else; then the stamps. Those are written only where they
-- are older than a quarter of the interval, and what somebody else has locked is skipped: mostly it is another process's
-- stamp. Only a stamp older than half the timeout is waited for, a little: then it is not heartbeats that hold the row but
-- claims with limits, and a busy group must not die of that.
CREATE FUNCTION {schema}.beat(
    p_owner text, p_ids integer[], p_processed bigint[], p_failed bigint[], p_filtered bigint[], p_rates double precision[],
    p_means_us bigint[], p_p95s_us bigint[], p_now {schema}.injected_time
) RETURNS TABLE (topic_id integer, state text, resurrected boolean, missed bigint, missed_first bigint, missed_last bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_dead integer[];
    v_topics integer[];
    v_revived integer[] := '{}';
BEGIN
    SELECT array_agg(s.subscription_id), array_agg(DISTINCT s.topic_id ORDER BY s.topic_id) INTO v_dead, v_topics
    FROM {schema}.subscription s WHERE s.subscription_id = ANY (p_ids) AND s.status = 'dead';
    IF v_dead IS NOT NULL THEN
        FOR i IN 1..cardinality(v_topics) LOOP
            PERFORM {schema}.lock_extent(v_topics[i]);
        END LOOP;
        PERFORM {schema}.hold_claims(v_dead, true);
        FOR i IN 1..cardinality(v_dead) LOOP
            IF {schema}.revive(v_dead[i], NULL, v_now) THEN
                v_revived := array_append(v_revived, v_dead[i]);
            END IF;
        END LOOP;
    END IF;
    IF cardinality(v_revived) = 0 THEN
        -- A beat lost in a power cut is made up for by the next one.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    WITH due AS MATERIALIZED (
        SELECT s.subscription_id FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
        WHERE s.subscription_id = ANY (p_ids) AND s.status IN ('active', 'paused')
          AND (s.suspected_at IS NOT NULL OR coalesce({schema}.stamp_age_ms(s.heartbeat_at, v_now) * 4 >= t.heartbeat_interval_ms, true))
        ORDER BY s.subscription_id FOR NO KEY UPDATE OF s SKIP LOCKED
    )
    UPDATE {schema}.subscription s SET heartbeat_at = v_now, suspected_at = NULL FROM due WHERE s.subscription_id = due.subscription_id;
    IF EXISTS (SELECT FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
               WHERE s.subscription_id = ANY (p_ids) AND s.status IN ('active', 'paused')
                 AND {schema}.stamp_age_ms(s.heartbeat_at, v_now) * 2 > t.heartbeat_timeout_ms) THEN
        PERFORM {schema}.stamp_overdue(p_ids, v_now);
    END IF;
    PERFORM FROM {schema}.activity a WHERE a.owner = p_owner AND a.subscription_id = ANY (p_ids)
    ORDER BY a.subscription_id FOR UPDATE;
    UPDATE {schema}.activity a
    SET processed = u.processed, failed = u.failed, filtered = u.filtered, rate = u.rate, handling_mean_us = u.mean_us,
        handling_p95_us = u.p95_us, told_at = v_now
    FROM unnest(p_ids, p_processed, p_failed, p_filtered, p_rates, p_means_us, p_p95s_us)
        AS u (id, processed, failed, filtered, rate, mean_us, p95_us)
    JOIN {schema}.subscription s ON s.subscription_id = u.id AND s.status <> 'cancelled'
    WHERE a.subscription_id = u.id AND a.owner = p_owner;
    -- A new row refers to its subscription, which must not be waited for either: if it is locked whole, the next beat tells.
    WITH free AS MATERIALIZED (
        SELECT s.subscription_id FROM {schema}.subscription s
        WHERE s.subscription_id = ANY (p_ids) AND s.status <> 'cancelled' AND NOT EXISTS (
            SELECT FROM {schema}.activity a WHERE a.subscription_id = s.subscription_id AND a.owner = p_owner)
        FOR KEY SHARE OF s SKIP LOCKED
    )
    INSERT INTO {schema}.activity (subscription_id, owner, processed, failed, filtered, rate, handling_mean_us,
                                   handling_p95_us, told_at)
    SELECT DISTINCT ON (u.id) u.id, p_owner, u.processed, u.failed, u.filtered, u.rate, u.mean_us, u.p95_us, v_now
    FROM unnest(p_ids, p_processed, p_failed, p_filtered, p_rates, p_means_us, p_p95s_us)
        AS u (id, processed, failed, filtered, rate, mean_us, p95_us)
    JOIN free ON free.subscription_id = u.id
    ORDER BY u.id
    ON CONFLICT (subscription_id, owner) DO NOTHING;
    RETURN QUERY
        SELECT s.topic_id, s.status, u.id = ANY (v_revived), s.missed, s.missed_first, s.missed_last
        FROM unnest(p_ids) WITH ORDINALITY AS u (id, i) LEFT JOIN {schema}.subscription s ON s.subscription_id = u.id
        ORDER BY u.i;
END $$;
COMMENT ON FUNCTION {schema}.beat IS 'granted to consumer: the heartbeat of a process for its subscriptions';

-- Writes stamps that are overdue, waiting for whoever holds the row, but not for long: the next beat tries again.
CREATE FUNCTION {schema}.stamp_overdue(p_ids integer[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
    UPDATE {schema}.subscription s SET heartbeat_at = p_now, suspected_at = NULL WHERE s.subscription_id = ANY (ARRAY(
        SELECT x.subscription_id FROM {schema}.subscription x JOIN {schema}.topic t ON t.topic_id = x.topic_id
        WHERE x.subscription_id = ANY (p_ids) AND x.status IN ('active', 'paused')
          AND {schema}.stamp_age_ms(x.heartbeat_at, p_now) * 2 > t.heartbeat_timeout_ms
        ORDER BY x.subscription_id FOR NO KEY UPDATE OF x));
EXCEPTION
    WHEN lock_not_available THEN NULL;
END $$;

-- Moves a subscription's cursor, or tells what that would do. How many messages that is about is counted before anything is
-- locked, because there may be millions: what is published, handled or removed meanwhile is not in the numbers.
CREATE FUNCTION {schema}.seek(
    p_topic text, p_group text, p_start text, p_offset bigint, p_at timestamptz, p_dry boolean, p_actor text, p_now timestamptz,
    OUT topic_id integer, OUT from_offset bigint, OUT to_offset bigint, OUT replayed bigint, OUT skipped bigint,
    OUT leases_lost bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    s {schema}.subscription := {schema}.find_subscription(p_topic, p_group);
    v_start bigint;
    v_before int8multirange;
    v_after int8multirange;
BEGIN
    PERFORM {schema}.refuse_cancelled(s, p_topic);
    topic_id := s.topic_id;
    SELECT f.next_offset INTO to_offset FROM {schema}.find_start(s.topic_id, p_start, p_offset, p_at, true) f;
    SELECT min(c.next_offset), {schema}.pending_of(s.subscription_id) INTO from_offset, v_before
    FROM {schema}.cursor c WHERE c.subscription_id = s.subscription_id;
    v_after := int8multirange(int8range(to_offset, NULL));
    replayed := (SELECT n.messages FROM {schema}.stored_in(s.topic_id, v_after - v_before) n);
    skipped := (SELECT n.messages FROM {schema}.stored_in(s.topic_id, v_before - v_after) n);
    IF p_dry THEN
        SELECT count(DISTINCT o.token) INTO leases_lost FROM {schema}.outstanding o
        WHERE o.subscription_id = s.subscription_id AND o.owner IS NOT NULL AND o.due_at > v_now;
        RETURN;
    END IF;
    PERFORM {schema}.lock_extent(s.topic_id);
    s := {schema}.find_subscription(p_topic, p_group);
    PERFORM {schema}.refuse_cancelled(s, p_topic);
    SELECT f.next_offset, f.start_offset INTO to_offset, v_start
    FROM {schema}.find_start(s.topic_id, p_start, p_offset, p_at, false) f;
    PERFORM {schema}.hold_claims(ARRAY[s.subscription_id], true);
    PERFORM FROM {schema}.cursor c WHERE c.subscription_id = s.subscription_id ORDER BY c.lane FOR UPDATE;
    SELECT min(c.next_offset) INTO from_offset FROM {schema}.cursor c WHERE c.subscription_id = s.subscription_id;
    leases_lost := {schema}.forget_outstanding(s.subscription_id, 9223372036854775807, v_now);
    UPDATE {schema}.cursor c SET next_offset = to_offset WHERE c.subscription_id = s.subscription_id;
    -- A rewind gives nothing up: what was this group's before is so still, also what comes late below the offset it goes back
    -- to. It comes once, because a row leaves its noted gap once, as a range of whoever's cursor is past it then. Only a skip
    -- gives up what lies below, late rows included.
    -- What it has not got on with since it restarted is measured from here.
    UPDATE {schema}.subscription x
    SET start_offset = CASE WHEN to_offset <= from_offset THEN least(x.start_offset, v_start) ELSE v_start END, required_from = least(x.required_from, to_offset), restarts = 0, restarts_since = NULL
    WHERE x.subscription_id = s.subscription_id;
    PERFORM {schema}.note_act(p_actor, 'seek', p_topic, p_group, jsonb_build_object('from', from_offset, 'to', to_offset,
        'replayed', replayed, 'skipped', skipped, 'leases_lost', leases_lost), v_now);
    PERFORM {schema}.wake(s.topic_id, true, true);
END $$;

-- Gives a group a delivery policy of its own; nulls take the topic's.
CREATE FUNCTION {schema}.set_policy(
    p_topic text, p_group text, p_lease_ms bigint, p_max_attempts integer, p_backoff_initial_ms bigint, p_backoff_max_ms bigint,
    p_actor text, p_now timestamptz
) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s {schema}.subscription := {schema}.find_subscription(p_topic, p_group);
BEGIN
    PERFORM {schema}.hold_claims(ARRAY[s.subscription_id], true);
    UPDATE {schema}.subscription x
    SET lease_ms = p_lease_ms, max_attempts = p_max_attempts, backoff_initial_ms = p_backoff_initial_ms, backoff_max_ms = p_backoff_max_ms
    WHERE x.subscription_id = s.subscription_id AND x.status <> 'cancelled';
    IF NOT FOUND THEN
        RETURN 'cancelled';
    END IF;
    PERFORM {schema}.note_act(p_actor, 'set_policy', p_topic, p_group, jsonb_build_object('lease_ms', p_lease_ms, 'max_attempts',
        p_max_attempts, 'backoff_initial_ms', p_backoff_initial_ms, 'backoff_max_ms', p_backoff_max_ms), p_now);
    RETURN s.status;
END $$;

-- Gives up for dead subscriptions what is done for every counting one and was published longer ago than that: a row for each that
-- had some. Up to the first message that is not so old, because a cursor is one offset. With p_dry nothing is changed.
CREATE FUNCTION {schema}.force_complete(p_topic text, p_older_than_ms bigint, p_dry boolean, p_actor text, p_now timestamptz)
RETURNS TABLE (group_name text, messages bigint, until bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_topic integer;
    v_dead integer[];
    v_until bigint;
    v_floor bigint;
    v_all bigint := 0;
    v_first bigint;
    v_last bigint;
    v_names text[] := '{}';
    s record;
BEGIN
    SELECT t.topic_id INTO v_topic FROM {schema}.topic t WHERE t.name = p_topic;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = format('no such topic: %s', p_topic);
    END IF;
    PERFORM {schema}.lock_extent(v_topic);
    PERFORM FROM {schema}.head h WHERE h.topic_id = v_topic FOR UPDATE;
    SELECT array_agg(x.subscription_id), min({schema}.floor_of(x.subscription_id)) INTO v_dead, v_floor
    FROM {schema}.subscription x WHERE x.topic_id = v_topic AND x.status = 'dead';
    IF v_dead IS NOT NULL THEN
        PERFORM {schema}.hold_claims(v_dead, true);
        v_until := {schema}.watermark_of(v_topic);
        v_until := least(v_until, (SELECT min(m.message_offset) - 1 FROM {schema}.message m
            WHERE m.topic_id = v_topic AND m.message_offset > v_floor AND m.message_offset <= v_until
              AND m.created_at >= v_now - make_interval(secs => p_older_than_ms / 1000.0)));
    END IF;
    FOR s IN SELECT x.subscription_id, x.group_name AS name FROM {schema}.subscription x
             WHERE x.subscription_id = ANY (v_dead) ORDER BY x.group_name
    LOOP
        SELECT n.messages, n.first_offset, n.last_offset INTO messages, v_first, v_last
        FROM {schema}.stored_in(v_topic, {schema}.pending_of(s.subscription_id) * int8multirange(int8range(NULL, v_until, '(]'))) n;
        CONTINUE WHEN messages = 0;
        IF NOT p_dry THEN
            PERFORM {schema}.give_up_below(s.subscription_id, v_until + 1, v_now);
            UPDATE {schema}.subscription x
            SET missed = x.missed + force_complete.messages, missed_first = least(x.missed_first, v_first),
                missed_last = greatest(x.missed_last, v_last)
            WHERE x.subscription_id = s.subscription_id;
        END IF;
        group_name := s.name;
        until := v_until;
        v_all := v_all + messages;
        v_names := array_append(v_names, s.name);
        RETURN NEXT;
    END LOOP;
    IF NOT p_dry THEN
        PERFORM {schema}.note_act(p_actor, 'force_complete', p_topic, NULL, jsonb_build_object('older_than_ms', p_older_than_ms,
            'groups', to_jsonb(v_names), 'messages', v_all, 'until', v_until), v_now);
    END IF;
END $$;
