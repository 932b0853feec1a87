-- Resurrection of dead subscriptions.

-- Resurrects a dead subscription; false if it is not dead. Runs under the lock of the topic range, so only one session does it. It
-- counts as a heartbeat: a process has the full timeout to send the next one.
CREATE OR REPLACE FUNCTION {schema}.revive(p_subscription_id integer, p_behind_max bigint, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_topic integer;
    v_next bigint;
BEGIN
    SELECT s.topic_id INTO v_topic FROM {schema}.subscription s WHERE s.subscription_id = p_subscription_id AND s.state = 'dead';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM {schema}.hold_claims(ARRAY[p_subscription_id], true);
    SELECT greatest(e.first_offset, h.head - p_behind_max + 1) INTO STRICT v_next
    FROM {schema}.head h JOIN {schema}.topic_range e ON e.topic_id = h.topic_id WHERE h.topic_id = v_topic FOR UPDATE OF h;
    UPDATE {schema}.subscription s
    SET state = 'active', state_at = p_now, heartbeat_at = p_now, suspected_at = NULL,
        -- Late messages below the new start are skipped too.
        start_offset = CASE WHEN p_behind_max IS NULL THEN s.start_offset ELSE greatest(s.start_offset, v_next) END
    WHERE s.subscription_id = p_subscription_id AND s.state = 'dead';
    IF p_behind_max IS NULL THEN
        -- Ranges below the first stored offset are left: they may be leased, and contain no messages any more.
        UPDATE {schema}.cursor c SET next_offset = greatest(c.next_offset, v_next) WHERE c.subscription_id = p_subscription_id;
    ELSE
        PERFORM {schema}.give_up_below(p_subscription_id, v_next, p_now);
    END IF;
    -- In a queue it never stopped counting.
    PERFORM {schema}.start_counting(p_subscription_id, p_now) FROM {schema}.topic t WHERE t.topic_id = v_topic AND t.semantics <> 'queue';
    PERFORM {schema}.wake(v_topic, true, true);
    RETURN true;
END $$;

-- Resurrects a dead subscription for an operator.
CREATE OR REPLACE FUNCTION {schema}.resurrect(
    p_topic text, p_group text, p_behind_max bigint, p_actor text, p_now {schema}.injected_time,
    OUT topic_id integer, OUT state text, OUT resurrected boolean, OUT next_offset bigint, OUT missed bigint,
    OUT missed_first bigint, OUT missed_last bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    s {schema}.subscription := {schema}.find_subscription(p_topic, p_group);
BEGIN
    PERFORM {schema}.lock_topic_range(s.topic_id);
    -- Read again under the lock: another session may have resurrected or cancelled it.
    s := {schema}.find_subscription(p_topic, p_group);
    topic_id := s.topic_id;
    state := s.state;
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
