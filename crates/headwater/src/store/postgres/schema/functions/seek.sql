-- Cursors moved, policies set and messages force-completed by operators.

-- Moves a subscription's cursor, or with p_dry returns what that would do. The numbers of messages are counted before anything is
-- locked, because there may be millions: messages published, handled or removed meanwhile are not in the numbers.
CREATE OR REPLACE FUNCTION {schema}.seek(
    p_topic text, p_group text, p_start text, p_offset bigint, p_at timestamptz, p_dry boolean, p_actor text, p_now {schema}.injected_time,
    OUT topic_id integer, OUT from_offset bigint, OUT to_offset bigint, OUT replayed bigint, OUT skipped bigint,
    OUT leases_lost bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
    PERFORM {schema}.lock_topic_range(s.topic_id);
    s := {schema}.find_subscription(p_topic, p_group);
    PERFORM {schema}.refuse_cancelled(s, p_topic);
    PERFORM {schema}.hold_claims(ARRAY[s.subscription_id], true);
    SELECT f.next_offset, f.start_offset INTO to_offset, v_start
    FROM {schema}.find_start(s.topic_id, p_start, p_offset, p_at, false) f;
    PERFORM FROM {schema}.cursor c WHERE c.subscription_id = s.subscription_id ORDER BY c.lane FOR UPDATE;
    SELECT min(c.next_offset) INTO from_offset FROM {schema}.cursor c WHERE c.subscription_id = s.subscription_id;
    leases_lost := {schema}.forget_outstanding(s.subscription_id, 9223372036854775807, v_now);
    UPDATE {schema}.cursor c SET next_offset = to_offset WHERE c.subscription_id = s.subscription_id;
    -- A rewind skips nothing: messages that were to be delivered to this group still are, also late ones below the new offset. They
    -- are delivered once, because a row leaves its recorded gap once, and becomes a range of every group whose cursor is past it
    -- then. Only a seek forward skips the messages below, late ones included.
    -- The check for flapping begins again at the new position.
    UPDATE {schema}.subscription x
    SET start_offset = CASE WHEN to_offset <= from_offset THEN least(x.start_offset, v_start) ELSE v_start END, restarts = 0, restarts_since = NULL
    WHERE x.subscription_id = s.subscription_id;
    PERFORM {schema}.cursor_moved(s.subscription_id, to_offset);
    PERFORM {schema}.note_act(p_actor, 'seek', p_topic, p_group, jsonb_build_object('from', from_offset, 'to', to_offset,
        'replayed', replayed, 'skipped', skipped, 'leases_lost', leases_lost), v_now);
    PERFORM {schema}.wake(s.topic_id, true, true);
END $$;

-- Sets the delivery policy of a group; nulls mean the topic's settings.
CREATE OR REPLACE FUNCTION {schema}.set_policy(
    p_topic text, p_group text, p_policy jsonb, p_actor text, p_now {schema}.injected_time
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s {schema}.subscription := {schema}.find_subscription(p_topic, p_group);
BEGIN
    PERFORM {schema}.hold_claims(ARRAY[s.subscription_id], true);
    UPDATE {schema}.subscription x
    SET lease_ms = n.lease_ms, max_attempts = n.max_attempts, backoff_initial_ms = n.backoff_initial_ms, backoff_max_ms = n.backoff_max_ms,
        heartbeat_interval_ms = n.heartbeat_interval_ms, heartbeat_timeout_ms = n.heartbeat_timeout_ms
    FROM jsonb_populate_record(NULL::{schema}.subscription, p_policy) n
    WHERE x.subscription_id = s.subscription_id AND x.state <> 'cancelled';
    IF NOT FOUND THEN
        RETURN 'cancelled';
    END IF;
    PERFORM {schema}.note_act(p_actor, 'set_policy', p_topic, p_group, p_policy, p_now);
    RETURN s.state;
END $$;

-- Completes, for dead subscriptions, messages that every counting one has done and that are older than p_older_than_ms: a row for
-- each subscription that had some. Up to the first message that is younger, because a cursor is one offset. With p_dry nothing is
-- changed.
CREATE OR REPLACE FUNCTION {schema}.force_complete(p_topic text, p_older_than_ms bigint, p_dry boolean, p_actor text, p_now {schema}.injected_time)
RETURNS TABLE (group_name text, messages bigint, until bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_topic integer := {schema}.topic_id_of(p_topic);
    v_dead integer[];
    v_until bigint;
    v_floor bigint;
    v_first bigint;
    v_last bigint;
    v_groups jsonb := '{}';
    s record;
BEGIN
    PERFORM {schema}.lock_topic_range(v_topic);
    SELECT array_agg(x.subscription_id) INTO v_dead
    FROM {schema}.subscription x WHERE x.topic_id = v_topic AND x.state = 'dead';
    IF v_dead IS NOT NULL THEN
        PERFORM {schema}.hold_claims(v_dead, true);
        PERFORM FROM {schema}.head h WHERE h.topic_id = v_topic FOR UPDATE;
        -- Read under the locks: a late message that was handed out while this waited is below the floor of before.
        v_floor := (SELECT min({schema}.floor_of(d)) FROM unnest(v_dead) d);
        -- Not the watermark: an operator requests it, so dead groups do not hold what they would give up, not even in a queue.
        v_until := (SELECT least(h.head, (SELECT min({schema}.floor_of(x.subscription_id)) FROM {schema}.subscription x
                                          WHERE x.topic_id = v_topic AND x.state IN ('active', 'paused')))
                    FROM {schema}.head h WHERE h.topic_id = v_topic);
        v_until := least(v_until, (SELECT min(m.message_offset) - 1 FROM {schema}.messages(v_topic, v_floor + 1, v_until) m
            WHERE m.created_at >= v_now - make_interval(secs => p_older_than_ms / 1000.0)));
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
        v_groups := v_groups || jsonb_build_object(s.name, messages);
        RETURN NEXT;
    END LOOP;
    IF NOT p_dry THEN
        PERFORM {schema}.note_act(p_actor, 'force_complete', p_topic, NULL, jsonb_build_object('older_than_ms', p_older_than_ms,
            'until', CASE WHEN v_groups <> '{}' THEN v_until END, 'groups', v_groups), v_now);
    END IF;
END $$;
