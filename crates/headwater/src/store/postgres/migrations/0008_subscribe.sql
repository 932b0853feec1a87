-- Subscribing, upkeep, and the flag of those who wait.

-- Subscribes a group. The head row's lock serialises it with other subscribers of the topic, with the hand-out of late
-- rows and with claims that meet a gap.
CREATE FUNCTION {schema}.subscribe(
    p_topic text, p_group text, p_start text, p_offset bigint, p_at timestamptz, p_now timestamptz,
    OUT subscription_id integer, OUT topic_id integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t {schema}.topic;
    h {schema}.head;
    v_other text;
    v_top bigint;
    v_missing int8multirange;
    v_next bigint;
    v_start bigint;
BEGIN
    PERFORM {schema}.check_name('topic', p_topic), {schema}.check_name('group', p_group);
    SELECT * INTO t FROM {schema}.topic q WHERE q.name = p_topic;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = format('no such topic: %s', p_topic);
    END IF;
    topic_id := t.topic_id;
    PERFORM {schema}.lock_extent(t.topic_id);
    SELECT * INTO STRICT h FROM {schema}.head e WHERE e.topic_id = t.topic_id FOR UPDATE;
    SELECT s.subscription_id INTO subscription_id FROM {schema}.subscription s
    WHERE s.topic_id = t.topic_id AND s.group_name = p_group;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT s.group_name INTO v_other FROM {schema}.subscription s WHERE s.topic_id = t.topic_id LIMIT 1;
    IF FOUND AND t.semantics = 'queue' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
            'invalid group: topic %s is a queue and its group is %s; a second group would compete for its messages: create the topic as pub_sub for fan-out',
            p_topic, v_other);
    END IF;
    -- Rows that came in noted gaps before this call are handed out before this group exists: they are not its.
    IF h.gaps_until > 0 THEN
        PERFORM {schema}.watch_gaps(t.topic_id, 0, NULL, NULL);
    END IF;
    -- What is visible now was committed before; what is not is delivered when it comes. So for a start by time the head moves to
    -- the last visible row and everything missing below it is noted: if it comes it comes late, also for this group.
    SELECT coalesce(range_agg(int8range(s.before + 1, s.message_offset)) FILTER (WHERE s.message_offset > s.before + 1), '{}'),
           max(s.message_offset)
    INTO v_missing, v_top
    FROM (SELECT m.message_offset, lag(m.message_offset, 1, h.head) OVER (ORDER BY m.message_offset) AS before
          FROM {schema}.message m
          WHERE m.topic_id = t.topic_id AND m.message_offset > h.head AND p_start IN ('now', 'timestamp')) s;
    IF v_top IS NOT NULL THEN
        INSERT INTO {schema}.gap (topic_id, first_offset, last_offset, bound, noted_at)
        SELECT t.topic_id, lower(r), upper(r) - 1, NULL, clock_timestamp() FROM unnest(v_missing) r;
        UPDATE {schema}.head e
        SET head = v_top, stuck_at = NULL,
            gaps_until = greatest(e.gaps_until, CASE WHEN isempty(v_missing) THEN 0 ELSE upper(v_missing) - 1 END)
        WHERE e.topic_id = t.topic_id
        RETURNING e.* INTO h;
    END IF;
    v_next := CASE p_start
        WHEN 'now' THEN h.head + 1
        -- Far enough for anybody, and room to add to.
        WHEN 'offset' THEN least(greatest(p_offset, 1), 4611686018427387904)
        WHEN 'bounded' THEN greatest(h.head - p_offset + 1, 1)
        WHEN 'timestamp' THEN coalesce(
            (SELECT min(m.message_offset) FROM {schema}.message m WHERE m.topic_id = t.topic_id AND m.created_at >= p_at),
            h.head + 1)
        ELSE (SELECT e.first_offset FROM {schema}.extent e WHERE e.topic_id = t.topic_id) END;
    -- Late rows below the start belong to it only if it started by time: they commit after that.
    v_start := CASE WHEN p_start IN ('now', 'timestamp') THEN 1 ELSE v_next END;
    INSERT INTO {schema}.subscription AS s (topic_id, group_name, lanes, start_offset, created_at)
    VALUES (t.topic_id, p_group, CASE t.ordering WHEN 'key' THEN t.lanes ELSE 0 END, v_start,
            coalesce(p_now, clock_timestamp()))
    RETURNING s.subscription_id INTO subscription_id;
    INSERT INTO {schema}.cursor (subscription_id, lane, topic_id, next_offset, ordered)
    SELECT subscribe.subscription_id, l, t.topic_id, v_next, t.ordering = 'key'
    FROM generate_series(0, CASE t.ordering WHEN 'key' THEN t.lanes - 1 ELSE 0 END) l;
    PERFORM {schema}.begin_accounting(subscription_id, p_now);
END $$;

-- Says that a process waits for these topics, for so many milliseconds of the server's time.
CREATE FUNCTION {schema}.raise_flag(p_topic_ids integer[], p_waiter_id uuid, p_for_ms bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO {schema}.waiter AS w (topic_id, waiter_id, until)
    SELECT DISTINCT t, p_waiter_id, clock_timestamp() + make_interval(secs => p_for_ms / 1000.0)
    FROM unnest(p_topic_ids) t ORDER BY t
    ON CONFLICT (topic_id, waiter_id) DO UPDATE SET until = excluded.until;
END $$;

-- One round of upkeep over all topics, after their heads were advanced: promotes, forgets old dedup keys and flags. It is
-- apart from "advance" so that nothing it may have to wait for keeps a head locked.
CREATE FUNCTION {schema}.maintain(
    p_promote_max integer, p_now timestamptz, OUT promoted bigint, OUT dedup_forgotten bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    SELECT coalesce(sum({schema}.promote(d.topic_id, p_promote_max, v_now)), 0) INTO promoted
    FROM (SELECT DISTINCT s.topic_id FROM {schema}.schedule s WHERE s.deliver_at <= v_now) d;
    DELETE FROM {schema}.dedup d WHERE d.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.dedup x WHERE x.expires_at <= v_now LIMIT 10000 FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS dedup_forgotten = ROW_COUNT;
    DELETE FROM {schema}.waiter w WHERE w.until < clock_timestamp() - interval '1 minute';
END $$;
