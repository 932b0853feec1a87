-- Subscriptions removed by operators, and by maintenance after their retention.

-- Deletes the cancelled subscriptions of a group name that are released from the records, after the steps of empty_cancelled.
-- Returns the state it found and how many it deleted.
CREATE OR REPLACE FUNCTION {schema}.remove_subscription(
    p_topic text, p_group text, p_before bigint, p_actor text, p_now {schema}.injected_time, OUT state text, OUT removed bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s {schema}.subscription := {schema}.find_subscription(p_topic, p_group);
    v_ids integer[];
BEGIN
    PERFORM {schema}.lock_topic_range(s.topic_id);
    SELECT array_agg(x.subscription_id) INTO v_ids FROM {schema}.subscription x
    WHERE x.topic_id = s.topic_id AND x.group_name = p_group AND x.state = 'cancelled' AND x.released_until IS NULL;
    removed := coalesce(cardinality(v_ids), 0);
    IF removed = 0 THEN
        SELECT CASE WHEN bool_or(x.state = 'cancelled') THEN 'cancelled' ELSE max(x.state) END INTO state
        FROM {schema}.subscription x WHERE x.topic_id = s.topic_id AND x.group_name = p_group;
        IF p_before > 0 THEN
            PERFORM {schema}.note_act(p_actor, 'remove', p_topic, p_group, jsonb_build_object(
                'subscriptions', 0, 'dead_letters', p_before), p_now);
        END IF;
        RETURN;
    END IF;
    state := 'cancelled';
    PERFORM FROM {schema}.subscription x WHERE x.subscription_id = ANY (v_ids) ORDER BY x.subscription_id FOR UPDATE;
    PERFORM {schema}.note_act(p_actor, 'remove', p_topic, p_group, jsonb_build_object('subscriptions', removed, 'dead_letters', p_before +
        (SELECT count(*) FROM {schema}.dead_letter d WHERE d.subscription_id = ANY (v_ids))), p_now);
    DELETE FROM {schema}.outstanding o WHERE o.subscription_id = ANY (v_ids);
    PERFORM FROM {schema}.activity a WHERE a.subscription_id = ANY (v_ids) ORDER BY a.subscription_id, a.owner FOR UPDATE;
    DELETE FROM {schema}.dead_letter d WHERE d.subscription_id = ANY (v_ids);
    DELETE FROM {schema}.subscription x WHERE x.subscription_id = ANY (v_ids);
END $$;

-- Moves a subscription that has been dead for too long past messages that are removed. Stored messages still count as not done:
-- only retention removes them, and counts them as missed. Under the locks of the topic range and, because it moves cursors, of the
-- head.
CREATE OR REPLACE FUNCTION {schema}.move_zombie(p_subscription_id integer, p_topic_id integer) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint;
BEGIN
    PERFORM {schema}.hold_claims(ARRAY[p_subscription_id], true);
    PERFORM FROM {schema}.head h WHERE h.topic_id = p_topic_id FOR UPDATE;
    SELECT e.first_offset INTO STRICT v_first FROM {schema}.topic_range e WHERE e.topic_id = p_topic_id;
    PERFORM FROM {schema}.progress_of(p_subscription_id) q
    WHERE q.state = 'dead' AND NOT q.counts AND lower(q.pending) < v_first;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM {schema}.give_up_below(p_subscription_id, v_first, clock_timestamp());
    RETURN true;
END $$;

-- One step for one subscription: the first beyond p_after whose retention has passed, or nulls if there is none. Moves a zombie,
-- or deletes a subscription that has been dead (in elapsed time) or cancelled for long and has nothing pending: it is released
-- from the completion records; a dead one has no outstanding ranges, and has done all stored messages; and it has no
-- dead letters, which an operator may still need. The dead group of a queue stays: without it nothing would be kept for its workers.
-- One transaction for each subscription: no topic waits for another.
CREATE OR REPLACE FUNCTION {schema}.clean_subscription(
    p_after integer, p_older_than_ms {schema}.subscription_age_ms, p_now {schema}.injected_time,
    OUT subscription_id integer, OUT topic text, OUT group_name text, OUT moved boolean, OUT deleted boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    s record;
BEGIN
    SELECT x.subscription_id, x.topic_id, x.name, x.group_name, x.zombie, x.old INTO s
    FROM (SELECT q.subscription_id, q.topic_id, t.name, q.group_name,
                 q.state = 'dead' AND q.died_elapsed_ms <= {schema}.elapsed() - t.zombie_subscription_ttl_ms AS zombie,
                 CASE q.state WHEN 'dead' THEN q.died_elapsed_ms <= {schema}.elapsed() - p_older_than_ms
                               ELSE q.state_at < {schema}.before(v_now, p_older_than_ms) END AS old
          FROM {schema}.subscription q JOIN {schema}.topic t ON t.topic_id = q.topic_id
          WHERE q.state = 'cancelled' OR q.state = 'dead' AND NOT {schema}.counts(q.state, t.semantics)) x
    WHERE x.subscription_id > p_after AND (x.zombie OR x.old)
    ORDER BY x.subscription_id LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    subscription_id := s.subscription_id;
    topic := s.name;
    group_name := s.group_name;
    moved := false;
    deleted := false;
    PERFORM {schema}.begin_maintenance(s.topic_id);
    IF s.zombie THEN
        moved := {schema}.move_zombie(s.subscription_id, s.topic_id);
    END IF;
    IF s.old THEN
        deleted := {schema}.delete_subscription(s.subscription_id, s.topic_id);
    END IF;
END $$;

-- Deletes a subscription that has nothing pending. Dead letters stay until they are purged: while it has any, it stays. Under the
-- head's lock: a late message that is handed out at this moment is either visible here, or finds no subscription.
CREATE OR REPLACE FUNCTION {schema}.delete_subscription(p_subscription_id integer, p_topic_id integer) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.hold_claims(ARRAY[p_subscription_id], true);
    PERFORM FROM {schema}.head h WHERE h.topic_id = p_topic_id FOR SHARE;
    -- Checked again, under the lock: it may have been resurrected.
    PERFORM FROM {schema}.progress_of(p_subscription_id) p JOIN {schema}.subscription s ON s.subscription_id = p.subscription_id
    WHERE s.released_until IS NULL
      AND (p.state = 'cancelled'
           OR p.state = 'dead' AND NOT p.counts AND isempty(p.held)
              AND NOT EXISTS (SELECT FROM {schema}.messages(p_topic_id, p.next_offset)))
      AND NOT EXISTS (SELECT FROM {schema}.dead_letter d WHERE d.subscription_id = p_subscription_id);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id;
    DELETE FROM {schema}.subscription s WHERE s.subscription_id = p_subscription_id;
    RETURN true;
END $$;
