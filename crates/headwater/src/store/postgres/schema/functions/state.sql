-- The states of subscriptions. The order of locks, and how claims are excluded, is described in functions/locks.sql.

-- Whether messages are kept for a subscription. That of a queue counts until it is cancelled: its messages are kept for its
-- workers.
CREATE OR REPLACE FUNCTION {schema}.counts(p_state text, p_semantics text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_state IN ('active', 'paused') OR p_state = 'dead' AND p_semantics = 'queue'
$$;

-- Copies state and lease of a subscription to its cursors, whatever statement changes it.
CREATE OR REPLACE FUNCTION {schema}.follow_subscription() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    -- In the order of locks: the UPDATE alone locks lanes in the order in which its plan finds them.
    PERFORM FROM {schema}.cursor c WHERE c.subscription_id = NEW.subscription_id ORDER BY c.lane FOR UPDATE;
    UPDATE {schema}.cursor c SET active = NEW.state = 'active', lease_ms = NEW.lease_ms
    WHERE c.subscription_id = NEW.subscription_id;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER cursor_follows AFTER UPDATE OF state, lease_ms ON {schema}.subscription
    FOR EACH ROW WHEN ((OLD.state, OLD.lease_ms) IS DISTINCT FROM (NEW.state, NEW.lease_ms))
    EXECUTE FUNCTION {schema}.follow_subscription();

-- The subscription of a group: the one that is not cancelled, or else the last cancelled one.
CREATE OR REPLACE FUNCTION {schema}.find_subscription(p_topic text, p_group text) RETURNS {schema}.subscription
LANGUAGE plpgsql AS $$
DECLARE
    s {schema}.subscription;
    v_topic integer := {schema}.topic_id_of(p_topic);
BEGIN
    SELECT * INTO s FROM {schema}.subscription x WHERE x.topic_id = v_topic AND x.group_name = p_group
    ORDER BY x.state = 'cancelled', x.subscription_id DESC LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW005', MESSAGE = format(
            'no such subscription: topic %s, group %s; see `headwater group list %1$s`', p_topic, p_group);
    END IF;
    RETURN s;
END $$;

-- Refuses to move a cancelled subscription: it has no position any more.
CREATE OR REPLACE FUNCTION {schema}.refuse_cancelled(s {schema}.subscription, p_topic text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF s.state = 'cancelled' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW007', MESSAGE = format(
            'invalid transition: topic %s, group %s is cancelled; seek needs active or paused or dead; nothing was changed',
            p_topic, s.group_name);
    END IF;
END $$;

-- Deletes the outstanding ranges of a subscription below an offset; returns how many leases were lost. The caller holds its
-- cursors and the topic's head, and excludes claims (hold_claims): only a settlement that splits a row it has locked can still
-- insert rows. Until that commits, a new query sees the row it splits; afterwards the query sees the rows it inserted. So if a
-- query finds no row, there is none. The number of deleted rows proves nothing: the row that was waited for may be gone.
--
-- Each round first locks all rows, in the order of locks, as settlements and extensions of several leases do. If a settlement
-- inserted rows meanwhile, the round releases its locks and starts again: the new rows may come before one that it has locked.
CREATE OR REPLACE FUNCTION {schema}.forget_outstanding(p_subscription_id integer, p_below bigint, p_now timestamptz) RETURNS bigint
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

-- Moves a subscription up to an offset: messages below are skipped. Runs under the locks of topic range and head.
CREATE OR REPLACE FUNCTION {schema}.give_up_below(p_subscription_id integer, p_next bigint, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.cursor c SET next_offset = greatest(c.next_offset, p_next) WHERE c.subscription_id = p_subscription_id;
    PERFORM {schema}.forget_outstanding(p_subscription_id, p_next, p_now);
END $$;

-- Pauses (with a reason), resumes or cancels. Compare and set: if the state is none of p_from nothing changes and the state is returned.
--
-- Cancelling takes the lock of the head too: no late message is handed out to the subscription once its ranges are removed.
CREATE OR REPLACE FUNCTION {schema}.set_state(
    p_topic text, p_group text, p_act text, p_from text[], p_to text, p_actor text, p_reason text, p_now {schema}.injected_time,
    OUT topic_id integer, OUT state text, OUT changed boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    s {schema}.subscription := {schema}.find_subscription(p_topic, p_group);
    v_lost bigint := 0;
BEGIN
    topic_id := s.topic_id;
    IF p_to = 'cancelled' THEN
        PERFORM {schema}.lock_topic_range(s.topic_id);
    END IF;
    PERFORM {schema}.hold_claims(ARRAY[s.subscription_id], true);
    IF p_to = 'cancelled' THEN
        PERFORM FROM {schema}.head h WHERE h.topic_id = s.topic_id FOR UPDATE;
    END IF;
    -- Read again under the lock: another session may have changed the state while this one waited, and the audit entry names it.
    SELECT x.* INTO s FROM {schema}.subscription x WHERE x.subscription_id = s.subscription_id FOR NO KEY UPDATE;
    -- A resume counts as a heartbeat, if there ever was one: the group's processes have a whole timeout to send the next.
    UPDATE {schema}.subscription x
    SET state = p_to, state_at = v_now, state_reason = p_reason,
        heartbeat_at = CASE WHEN p_to = 'active' AND (
            SELECT h.heard_at FROM {schema}.heard h WHERE h.subscription_id = s.subscription_id) < v_now
            THEN v_now ELSE x.heartbeat_at END
    WHERE x.subscription_id = s.subscription_id AND x.state = ANY (p_from);
    changed := FOUND;
    IF NOT changed THEN
        SELECT x.state INTO state FROM {schema}.find_subscription(p_topic, p_group) x;
        RETURN;
    END IF;
    state := p_to;
    IF p_to = 'cancelled' THEN
        v_lost := {schema}.forget_outstanding(s.subscription_id, 9223372036854775807, v_now);
        PERFORM {schema}.stop_counting(s.subscription_id);
    END IF;
    PERFORM {schema}.note_act(p_actor, p_act, p_topic, p_group, jsonb_build_object(
        'from', s.state, 'to', p_to, 'leases_lost', v_lost)
        || jsonb_strip_nulls(jsonb_build_object('reason', p_reason)), v_now);
    -- Without checking flags: a flag raised while this runs is not visible, and such changes are rare.
    PERFORM {schema}.wake(s.topic_id, true, true);
END $$;

-- Pauses an active subscription. Consumers may call it too: a group pauses itself when everything it handles fails. Resuming is
-- for operators.
CREATE OR REPLACE FUNCTION {schema}.pause(
    p_topic text, p_group text, p_actor text, p_reason text, p_now {schema}.injected_time,
    OUT topic_id integer, OUT state text, OUT changed boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT x.topic_id, x.state, x.changed INTO topic_id, state, changed
    FROM {schema}.set_state(p_topic, p_group, 'pause', ARRAY['active'], 'paused', p_actor, p_reason, p_now) x;
END $$;
