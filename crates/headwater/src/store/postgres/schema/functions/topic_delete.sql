-- Topics deleted, and emptied, by operators.
--
-- Why no publish is acknowledged and then lost. A publish reads the number of its topic by name, and then
--
--   - takes an offset. nextval() locks the topic's sequence in ROW EXCLUSIVE mode until the transaction ends, also if it is
--     prepared. delete_topic alters the sequence, and so waits for every transaction that has taken an offset, and makes later
--     ones wait for itself. Afterwards the sequence is at its maximum: a publish that read the number before and takes an offset
--     after fails with SQLSTATE 2200H, or XX000 once the sequence is dropped, which clients report as NoSuchTopic.
--   - or only stores a scheduled message or a dedup key. Then publish_each holds the topic's row FOR KEY SHARE, for which the
--     DELETE of the row waits, and which finds no row afterwards.
--
-- So a publish commits before the topic is deleted, and is deleted with it, or fails. The number is never used again: a program
-- that still knows it finds no topic, and none of its rows belong to a new topic of the same name.
--
-- The waits are short (lock_timeout): others queue behind them, and a session that holds one of these locks may be waiting for
-- another one that delete_topic holds. A deletion that does not get its locks changes nothing and is repeated by the client.

-- The groups of a topic that processes serve, by name, and by how many.
CREATE OR REPLACE FUNCTION {schema}.topic_served(p_topic_id integer, p_now timestamptz, OUT served text[], OUT processes bigint[])
LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(g.group_name ORDER BY g.group_name), '{}'), coalesce(array_agg(g.processes ORDER BY g.group_name), '{}')
    FROM (SELECT s.group_name, count(*) AS processes
          FROM {schema}.subscription s
          JOIN {schema}.topic t ON t.topic_id = s.topic_id
          JOIN {schema}.activity a ON a.subscription_id = s.subscription_id
          JOIN {schema}.owner w ON w.owner = a.owner
          WHERE s.topic_id = p_topic_id AND s.state <> 'cancelled' AND a.serving
            AND w.seen_at > {schema}.before(p_now, coalesce(s.heartbeat_timeout_ms, t.heartbeat_timeout_ms))
          GROUP BY s.subscription_id) g
$$;

-- What a topic holds.
CREATE OR REPLACE FUNCTION {schema}.topic_contents(
    p_topic text, p_now {schema}.injected_time,
    OUT messages bigint, OUT scheduled bigint, OUT groups bigint, OUT leases bigint, OUT dead_letters bigint,
    OUT served text[], OUT processes bigint[]
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_topic_id integer := {schema}.topic_id_of(p_topic);
BEGIN
    SELECT {schema}.count_stored(v_topic_id),
           (SELECT count(*) FROM {schema}.schedule d WHERE d.topic_id = v_topic_id),
           (SELECT count(*) FROM {schema}.subscription s WHERE s.topic_id = v_topic_id AND s.state <> 'cancelled'),
           (SELECT count(DISTINCT o.token) FROM {schema}.subscription s
            JOIN {schema}.outstanding o ON o.subscription_id = s.subscription_id
            WHERE s.topic_id = v_topic_id AND o.owner IS NOT NULL AND o.due_at > v_now),
           (SELECT count(*) FROM {schema}.subscription s JOIN {schema}.dead_letter d ON d.subscription_id = s.subscription_id
            WHERE s.topic_id = v_topic_id),
           v.served, v.processes
    INTO messages, scheduled, groups, leases, dead_letters, served, processes
    FROM {schema}.topic_served(v_topic_id, v_now) v;
END $$;

-- Deletes a topic with its subscriptions, and what refers to them; what may be many rows is recorded in "deleted_topic". Nothing is
-- changed if a process serves the topic, unless p_force is set. Messages are counted before anything is locked.
CREATE OR REPLACE FUNCTION {schema}.delete_topic(
    p_topic text, p_force boolean, p_actor text, p_now {schema}.injected_time,
    OUT topic_id integer, OUT deleted boolean, OUT messages bigint, OUT scheduled bigint, OUT groups bigint, OUT leases bigint,
    OUT dead_letters bigint, OUT served text[], OUT processes bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
#variable_conflict use_variable
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_sequence regclass;
    v_last bigint;
    v_ids integer[];
    v_id integer;
BEGIN
    topic_id := {schema}.topic_id_of(p_topic);
    deleted := false;
    SELECT c.messages, c.scheduled, c.groups, c.leases, c.dead_letters INTO messages, scheduled, groups, leases, dead_letters
    FROM {schema}.topic_contents(p_topic, p_now) c;
    PERFORM {schema}.begin_maintenance(topic_id);
    v_ids := ARRAY(SELECT s.subscription_id FROM {schema}.subscription s WHERE s.topic_id = topic_id ORDER BY s.subscription_id);
    SELECT v.served, v.processes INTO served, processes FROM {schema}.topic_served(topic_id, v_now) v;
    IF cardinality(served) > 0 AND NOT p_force THEN
        RETURN;
    END IF;
    PERFORM {schema}.hold_claims(v_ids, true);
    PERFORM FROM {schema}.head h WHERE h.topic_id = topic_id FOR UPDATE;
    PERFORM FROM {schema}.subscription s WHERE s.subscription_id = ANY (v_ids) ORDER BY s.subscription_id FOR UPDATE;
    PERFORM FROM {schema}.cursor c WHERE c.subscription_id = ANY (v_ids) ORDER BY c.subscription_id, c.lane FOR UPDATE;
    FOREACH v_id IN ARRAY v_ids LOOP
        PERFORM {schema}.forget_outstanding(v_id, 9223372036854775807, v_now);
    END LOOP;
    PERFORM FROM {schema}.activity a WHERE a.subscription_id = ANY (v_ids) ORDER BY a.subscription_id, a.owner FOR UPDATE;
    SELECT t.offsets INTO STRICT v_sequence FROM {schema}.topic t WHERE t.topic_id = topic_id;
    -- Takes the lock; only then is the last offset known.
    EXECUTE format('ALTER SEQUENCE %s NO CYCLE', v_sequence);
    -- The server refuses a maximum that is not above the minimum, 1.
    v_last := greatest({schema}.last_taken(topic_id), 2);
    EXECUTE format('ALTER SEQUENCE %s MAXVALUE %s', v_sequence, v_last);
    PERFORM setval(v_sequence, v_last);
    INSERT INTO {schema}.deleted_topic (topic_id, subscription_ids, offsets, deleted_at) VALUES (topic_id, v_ids, v_sequence, v_now);
    DELETE FROM {schema}.topic t WHERE t.topic_id = topic_id;
    PERFORM {schema}.note_act(p_actor, 'delete_topic', p_topic, NULL, jsonb_build_object('messages', messages, 'scheduled', scheduled,
        'groups', groups, 'dead_letters', dead_letters, 'leases_lost', leases), v_now);
    PERFORM {schema}.wake(topic_id, true, true);
    deleted := true;
END $$;

-- A step of the removal of what deleted topics left, of the first of them from p_from on: at most p_max rows of one kind, and fewer
-- if their payloads are large. Returns the topic, null if none is left; with a p_max of 0 nothing is removed. No session but this
-- one uses these rows: only other steps are waited for, and those are skipped.
CREATE OR REPLACE FUNCTION {schema}.empty_deleted_topic(p_max integer, p_from integer DEFAULT 0) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    d {schema}.deleted_topic;
    v_removed bigint;
BEGIN
    SELECT x.* INTO d FROM {schema}.deleted_topic x WHERE x.topic_id >= p_from ORDER BY x.topic_id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR p_max = 0 THEN
        RETURN d.topic_id;
    END IF;
    -- A step that is lost in a crash is repeated.
    PERFORM set_config('synchronous_commit', 'off', true);
    v_removed := {schema}.remove_stored(d.topic_id, p_max) + {schema}.forget_below(d.topic_id, 9223372036854775807, p_max);
    IF v_removed = 0 THEN
        DELETE FROM {schema}.dead_letter l WHERE l.ctid = ANY (ARRAY(
            SELECT q.row FROM (
                SELECT p.row, sum(p.bytes) OVER (ORDER BY p.row ROWS UNBOUNDED PRECEDING) - p.bytes AS bytes_before
                FROM (SELECT x.ctid AS row, pg_column_size(x.payload) AS bytes FROM {schema}.dead_letter x
                      WHERE x.subscription_id = ANY (d.subscription_ids) LIMIT p_max) p) q
            WHERE q.bytes_before < {schema}.removal_bytes()));
        GET DIAGNOSTICS v_removed = ROW_COUNT;
    END IF;
    IF v_removed = 0 THEN
        DELETE FROM {schema}.schedule s WHERE s.ctid = ANY (ARRAY(
            SELECT q.row FROM (
                SELECT p.row, sum(p.bytes) OVER (ORDER BY p.row ROWS UNBOUNDED PRECEDING) - p.bytes AS bytes_before
                FROM (SELECT x.ctid AS row, pg_column_size(x.payload) AS bytes FROM {schema}.schedule x
                      WHERE x.topic_id = d.topic_id LIMIT p_max) p) q
            WHERE q.bytes_before < {schema}.removal_bytes()));
        GET DIAGNOSTICS v_removed = ROW_COUNT;
    END IF;
    IF v_removed = 0 THEN
        DELETE FROM {schema}.dedup k WHERE k.ctid = ANY (ARRAY(
            SELECT x.ctid FROM {schema}.dedup x WHERE x.topic_id = d.topic_id LIMIT p_max));
        GET DIAGNOSTICS v_removed = ROW_COUNT;
    END IF;
    IF v_removed = 0 THEN
        DELETE FROM {schema}.gap g WHERE g.topic_id = d.topic_id;
        DELETE FROM {schema}.hole h WHERE h.topic_id = d.topic_id;
        DELETE FROM {schema}.deleted_topic x WHERE x.topic_id = d.topic_id;
        EXECUTE format('DROP SEQUENCE IF EXISTS %s', d.offsets);
    END IF;
    RETURN d.topic_id;
END $$;

-- Moves all groups of a topic past everything that is committed, as a seek to now does; the messages are then removed in steps.
-- Returns their offsets. Offsets of recorded gaps are not among them: a message that commits there later is late, and is delivered.
CREATE OR REPLACE FUNCTION {schema}.purge_topic(
    p_topic text, p_force boolean, p_actor text, p_now {schema}.injected_time,
    OUT topic_id integer, OUT purged boolean, OUT messages bigint, OUT scheduled bigint, OUT groups bigint, OUT leases bigint,
    OUT dead_letters bigint, OUT served text[], OUT processes bigint[], OUT first_offset bigint, OUT offsets int8multirange
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_next bigint;
    v_lost bigint := 0;
    v_ids integer[];
    v_id integer;
BEGIN
    topic_id := {schema}.topic_id_of(p_topic);
    purged := false;
    SELECT c.messages, c.scheduled, c.groups, c.leases, c.dead_letters INTO messages, scheduled, groups, leases, dead_letters
    FROM {schema}.topic_contents(p_topic, p_now) c;
    SELECT e.first_offset INTO first_offset FROM {schema}.begin_maintenance(topic_id) e;
    SELECT v.served, v.processes INTO served, processes FROM {schema}.topic_served(topic_id, v_now) v;
    IF cardinality(served) > 0 AND NOT p_force THEN
        RETURN;
    END IF;
    v_ids := ARRAY(SELECT s.subscription_id FROM {schema}.subscription s WHERE s.topic_id = topic_id AND s.state <> 'cancelled'
                   ORDER BY s.subscription_id);
    PERFORM {schema}.hold_claims(v_ids, true);
    SELECT f.next_offset INTO v_next FROM {schema}.find_start(topic_id, 'now', NULL, NULL, false) f;
    PERFORM FROM {schema}.cursor c WHERE c.subscription_id = ANY (v_ids) ORDER BY c.subscription_id, c.lane FOR UPDATE;
    FOREACH v_id IN ARRAY v_ids LOOP
        v_lost := v_lost + {schema}.forget_outstanding(v_id, 9223372036854775807, v_now);
    END LOOP;
    UPDATE {schema}.cursor c SET next_offset = v_next WHERE c.subscription_id = ANY (v_ids);
    UPDATE {schema}.subscription s SET restarts = 0, restarts_since = NULL WHERE s.subscription_id = ANY (v_ids);
    -- Read after the head was moved, which may have recorded gaps.
    offsets := {schema}.span(first_offset, v_next - 1) - {schema}.gaps(topic_id);
    PERFORM {schema}.note_act(p_actor, 'purge_topic', p_topic, NULL, jsonb_build_object('until', v_next - 1, 'messages', messages,
        'groups', cardinality(v_ids), 'leases_lost', v_lost), v_now);
    PERFORM {schema}.wake(topic_id, true, true);
    purged := true;
END $$;

-- A step of a purge: removes at most p_max messages of the set from an offset on, and fewer if their payloads are large; returns where the next step begins, null at the
-- end. A message that a group has to do again, because an operator moved it back or redrove a dead letter meanwhile, stays. Under
-- the lock of the topic range: see functions/clean.sql for why no message is removed that a group was promised.
CREATE OR REPLACE FUNCTION {schema}.remove_purged(p_topic_id integer, p_offsets int8multirange, p_from bigint, p_max integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_going int8multirange;
    v_last bigint;
    v_pending int8multirange;
    v_removed bigint := 0;
    v_range int8range;
    v_first bigint;
BEGIN
    PERFORM FROM {schema}.begin_maintenance(p_topic_id);
    v_going := {schema}.lowest_stored(p_topic_id, p_offsets, p_from, p_max);
    IF isempty(v_going) THEN
        RETURN NULL;
    END IF;
    v_last := upper(v_going) - 1;
    SELECT coalesce(range_agg(p.pending), '{}') INTO v_pending FROM {schema}.progress_list(p_topic_id) p WHERE p.state <> 'cancelled';
    FOR v_range IN SELECT r FROM unnest(v_going - v_pending) r LOOP
        v_removed := v_removed + {schema}.delete_stored(p_topic_id, lower(v_range), upper(v_range) - 1);
        PERFORM {schema}.forget_purged_records(p_topic_id, lower(v_range), upper(v_range) - 1);
    END LOOP;
    -- Up to the lowest message that stays, never across a gap or beyond the head, where a message may still appear.
    SELECT least(h.head + 1, lower({schema}.gaps(p_topic_id)), {schema}.first_stored(p_topic_id))
    INTO v_first FROM {schema}.head h WHERE h.topic_id = p_topic_id;
    UPDATE {schema}.topic_range e SET first_offset = greatest(e.first_offset, v_first), removed = e.removed + v_removed
    WHERE e.topic_id = p_topic_id RETURNING e.first_offset INTO v_first;
    PERFORM {schema}.forget_below(p_topic_id, v_first, p_max);
    RETURN v_last + 1;
END $$;
