-- Groups that come and go: their place in the accounting, and backfills, which bring a group that came late into records
-- that are there already.
--
-- A backfill covers offsets up to an end fixed when it starts. Each batch is one transaction with its checkpoint: killed, it
-- goes on from the last one. Setting a bit that is set changes nothing, so a batch done twice would do no harm either.
-- Between batches groups go on: the record gets the group's bit, and whether it is done by then; what is done later is
-- a difference to what was applied, and tracking sets it.

-- A bit that nobody has: never used, or not found in any record.
CREATE FUNCTION {schema}.free_bit(p_topic_id integer) RETURNS smallint
LANGUAGE plpgsql AS $$
DECLARE
    v_used bigint;
    v_topic text;
    v_bit smallint;
BEGIN
    SELECT e.bits_used INTO v_used FROM {schema}.extent e WHERE e.topic_id = p_topic_id;
    -- Without a look at the records first: there may be millions.
    FOR v_bit IN
        SELECT b FROM generate_series(0, 63) b
        -- A cancelled one that is released may stay for its letters; it needs its bit only where a record still names it.
        WHERE NOT EXISTS (SELECT FROM {schema}.subscription s WHERE s.topic_id = p_topic_id AND s.bit = b
                          AND (s.status <> 'cancelled' OR s.released_until IS NOT NULL))
        ORDER BY v_used & (1::bigint << b) <> 0, b
    LOOP
        CONTINUE WHEN v_used & (1::bigint << v_bit) <> 0 AND EXISTS (
            SELECT FROM {schema}.record r WHERE r.topic_id = p_topic_id AND (r.required | r.completed) & (1::bigint << v_bit) <> 0);
        UPDATE {schema}.extent e SET bits_used = e.bits_used | (1::bigint << v_bit) WHERE e.topic_id = p_topic_id;
        UPDATE {schema}.subscription s SET bit = NULL WHERE s.topic_id = p_topic_id AND s.bit = v_bit;
        RETURN v_bit;
    END LOOP;
    SELECT t.name INTO v_topic FROM {schema}.topic t WHERE t.topic_id = p_topic_id;
    RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
        'invalid group: topic %s counts references and has 64 groups, which is the most; change its tracking to offset_watermark for any number',
        v_topic);
END $$;

-- Gives a subscription that begins to count, or counts again, its place: a bit, where it is required from, what is applied,
-- and a backfill for what is there already. Runs under the lock of the extent, and takes the head's: see record_late. In
-- offset watermark the backfill only shows how far the group has caught up.
CREATE FUNCTION {schema}.begin_accounting(p_subscription_id integer, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    t {schema}.topic;
    e {schema}.extent;
    p {schema}.place;
    v_head bigint;
    v_gaps int8multirange;
    v_bit smallint;
    v_first bigint;
    v_last bigint;
BEGIN
    SELECT x.* INTO STRICT t FROM {schema}.topic x JOIN {schema}.subscription s ON s.topic_id = x.topic_id
    WHERE s.subscription_id = p_subscription_id;
    PERFORM FROM {schema}.head h WHERE h.topic_id = t.topic_id FOR SHARE;
    SELECT q.* INTO STRICT p FROM {schema}.place_of(p_subscription_id) q;
    SELECT x.* INTO STRICT e FROM {schema}.extent x WHERE x.topic_id = t.topic_id;
    SELECT h.head, {schema}.gaps(t.topic_id) INTO v_head, v_gaps FROM {schema}.head h WHERE h.topic_id = t.topic_id;
    -- What was published while nobody counted keeps its least life.
    UPDATE {schema}.extent x SET zero_until = {schema}.last_taken(t.topic_id) WHERE x.topic_id = t.topic_id AND x.zero_until IS NULL;
    v_first := greatest(lower(p.pending), e.first_offset);
    IF t.tracking = 'offset_watermark' THEN
        v_last := v_head;
        UPDATE {schema}.subscription s SET required_from = p.next_offset WHERE s.subscription_id = p_subscription_id;
    ELSE
        v_last := e.tracked_until;
        v_first := greatest(v_first, v_last - 1000000 + 1);
        v_bit := coalesce(p.bit, {schema}.free_bit(t.topic_id));
        -- Nothing has to be set for what is done already: no pending record has its bit, and a backfill sets it together with
        -- what it finds done. But if it comes back before the records have let go of it, some have: then all is applied anew.
        UPDATE {schema}.subscription s
        SET bit = v_bit, required_from = p.next_offset, released_until = NULL,
            applied = CASE WHEN s.released_until IS NULL
                THEN int8multirange(int8range(e.first_offset, greatest(e.tracked_until + 1, e.first_offset))) - p.pending - v_gaps
                ELSE '{}' END
        WHERE s.subscription_id = p_subscription_id;
    END IF;
    DELETE FROM {schema}.backfill b WHERE b.subscription_id = p_subscription_id;
    IF v_first <= v_last THEN
        INSERT INTO {schema}.backfill (subscription_id, state, first_offset, last_offset, checkpoint, rate_max, created_at)
        VALUES (p_subscription_id, 'not_started', v_first, v_last, v_first - 1, 50000, v_now);
    END IF;
END $$;

-- Ends the accounting of a subscription that died or was cancelled: its status says so already. Runs under the lock of the
-- extent and takes the head's, so that no late row is handed to a cancelled one, or recorded for either, after this. What
-- is pending lets go of it step by step: see release_records.
CREATE FUNCTION {schema}.end_accounting(p_subscription_id integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    s {schema}.subscription;
BEGIN
    -- Died in a queue, it counts.
    IF (SELECT {schema}.counts(x.status, t.semantics) FROM {schema}.subscription x JOIN {schema}.topic t ON t.topic_id = x.topic_id
        WHERE x.subscription_id = p_subscription_id) THEN
        RETURN;
    END IF;
    PERFORM FROM {schema}.head h
    WHERE h.topic_id = (SELECT x.topic_id FROM {schema}.subscription x WHERE x.subscription_id = p_subscription_id) FOR SHARE;
    UPDATE {schema}.subscription x SET released_until = CASE WHEN x.bit IS NOT NULL THEN 0 END
    WHERE x.subscription_id = p_subscription_id RETURNING x.* INTO STRICT s;
    UPDATE {schema}.backfill b SET state = 'cancelled', worker = NULL, worker_until = NULL
    WHERE b.subscription_id = p_subscription_id AND b.state IN ('not_started', 'in_progress');
    IF s.status = 'cancelled' THEN
        DELETE FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id;
    END IF;
    PERFORM {schema}.count_no_more(s.topic_id);
END $$;

-- The topic became a queue, or pub/sub: its dead groups count from now on, or no longer. Runs under the lock of the extent.
CREATE FUNCTION {schema}.semantics_changed(p_topic_id integer, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    p {schema}.place;
BEGIN
    FOR p IN SELECT q.* FROM {schema}.places(p_topic_id) q WHERE q.status = 'dead' LOOP
        IF p.counts THEN
            PERFORM {schema}.begin_accounting(p.subscription_id, p_now);
        ELSE
            PERFORM {schema}.end_accounting(p.subscription_id);
        END IF;
    END LOOP;
END $$;

-- Changes how a topic tracks completion; "track" brings it about. Runs under the lock of the extent, and takes the head's: a
-- late row is recorded by the mode that its hand-out sees, and by nobody else.
CREATE FUNCTION {schema}.change_tracking(p_topic_id integer, p_target text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    t {schema}.topic;
    e {schema}.extent;
    v_head bigint;
    v_subscription integer;
BEGIN
    SELECT x.* INTO STRICT t FROM {schema}.topic x WHERE x.topic_id = p_topic_id;
    SELECT x.* INTO STRICT e FROM {schema}.extent x WHERE x.topic_id = p_topic_id;
    IF t.tracking = p_target THEN
        RETURN;
    END IF;
    IF e.change_until IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW008', MESSAGE = format(
            'a change of mode is under way: topic %s becomes %s; wait until it is done, see `headwater topic show`', t.name, t.tracking);
    END IF;
    SELECT h.head INTO STRICT v_head FROM {schema}.head h WHERE h.topic_id = p_topic_id FOR UPDATE;
    UPDATE {schema}.topic x SET tracking = p_target WHERE x.topic_id = p_topic_id;
    IF p_target = 'offset_watermark' THEN
        UPDATE {schema}.extent x SET change_until = greatest(x.tracked_until, 0), pending_from = x.first_offset WHERE x.topic_id = p_topic_id;
        RETURN;
    END IF;
    UPDATE {schema}.extent x
    SET tracked_until = x.first_offset - 1, pending_from = x.first_offset,
        change_until = CASE WHEN v_head >= x.first_offset THEN v_head END
    WHERE x.topic_id = p_topic_id;
    -- Each record is made with what is done by then, so nothing is applied and nothing is to be filled.
    FOR v_subscription IN SELECT s.subscription_id FROM {schema}.subscription s
                          WHERE s.topic_id = p_topic_id AND s.status <> 'cancelled' ORDER BY s.subscription_id
    LOOP
        UPDATE {schema}.subscription s SET bit = {schema}.free_bit(p_topic_id), applied = '{}', released_until = NULL
        WHERE s.subscription_id = v_subscription;
    END LOOP;
    UPDATE {schema}.backfill b SET state = 'completed', checkpoint = b.last_offset
    FROM {schema}.subscription s WHERE s.subscription_id = b.subscription_id AND s.topic_id = p_topic_id;
END $$;

-- How far a change of mode is: offsets dealt with, of so many. No row when none is under way.
CREATE FUNCTION {schema}.tracking_change(p_topic_id integer, OUT done bigint, OUT total bigint) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT least(greatest(CASE t.tracking WHEN 'offset_watermark' THEN e.pending_from ELSE e.tracked_until + 1 END - e.first_offset, 0),
                 greatest(e.change_until - e.first_offset + 1, 0)),
           greatest(e.change_until - e.first_offset + 1, 0)
    FROM {schema}.extent e JOIN {schema}.topic t ON t.topic_id = e.topic_id
    WHERE e.topic_id = p_topic_id AND e.change_until IS NOT NULL
$$;
COMMENT ON FUNCTION {schema}.tracking_change IS 'granted to producer, consumer, reader: how far a change of mode is';

-- A backfill with where it is. In offset watermark nothing is done for it: it is as far as the group is.
CREATE FUNCTION {schema}.backfills(p_subscription_id integer)
RETURNS TABLE (topic text, group_name text, state text, first_offset bigint, last_offset bigint, checkpoint bigint,
               created_at timestamptz, progressed_at timestamptz, ran_ms bigint, rate_max integer, error text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.name, s.group_name,
           CASE WHEN f.floor IS NULL OR b.state IN ('cancelled', 'failed') THEN b.state
                WHEN f.floor >= b.last_offset THEN 'completed' ELSE 'in_progress' END,
           b.first_offset, b.last_offset,
           CASE WHEN f.floor IS NULL THEN b.checkpoint ELSE greatest(least(f.floor, b.last_offset), b.checkpoint) END,
           b.created_at, b.progressed_at, b.ran_ms, b.rate_max, b.error
    FROM {schema}.backfill b
    JOIN {schema}.subscription s ON s.subscription_id = b.subscription_id
    JOIN {schema}.topic t ON t.topic_id = s.topic_id
    CROSS JOIN LATERAL (SELECT CASE WHEN t.tracking = 'offset_watermark' THEN (
        SELECT lower(p.pending) - 1 FROM {schema}.place_of(s.subscription_id) p) END AS floor) f
    WHERE p_subscription_id IS NULL OR b.subscription_id = p_subscription_id
    ORDER BY b.created_at DESC, b.subscription_id DESC
$$;
COMMENT ON FUNCTION {schema}.backfills IS 'granted to consumer, reader: how far backfills are';

-- The group an operator names, under the lock of its topic's extent.
CREATE FUNCTION {schema}.locked_group(p_topic text, p_group text) RETURNS {schema}.subscription
LANGUAGE plpgsql AS $$
DECLARE
    v_topic integer;
    s {schema}.subscription;
BEGIN
    SELECT t.topic_id INTO v_topic FROM {schema}.topic t WHERE t.name = p_topic;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = format('no such topic: %s', p_topic);
    END IF;
    PERFORM {schema}.begin_upkeep(v_topic);
    SELECT x.* INTO s FROM {schema}.subscription x
    WHERE x.topic_id = v_topic AND x.group_name = p_group AND x.status <> 'cancelled';
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW005', MESSAGE = format(
            'no such subscription: topic %s, group %s; see `headwater group list %s`', p_topic, p_group, p_topic);
    END IF;
    RETURN s;
END $$;

-- Starts a backfill by hand; returns its subscription.
CREATE FUNCTION {schema}.start_backfill(
    p_topic text, p_group text, p_messages_max bigint, p_rate_max integer, p_actor text, p_now {schema}.injected_time
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    s {schema}.subscription := {schema}.locked_group(p_topic, p_group);
    v_first bigint;
    v_last bigint;
BEGIN
    IF EXISTS (SELECT FROM {schema}.backfills(s.subscription_id) b WHERE b.state IN ('not_started', 'in_progress')) THEN
        RAISE EXCEPTION USING ERRCODE = 'HW008', MESSAGE = format(
            'a backfill is under way: topic %s, group %s; wait for it or cancel it', p_topic, p_group);
    END IF;
    IF s.status NOT IN ('active', 'paused') THEN
        RAISE EXCEPTION USING ERRCODE = 'HW007', MESSAGE = format(
            'invalid transition: topic %s, group %s is %s; a backfill needs active or paused; nothing was changed',
            p_topic, p_group, s.status);
    END IF;
    SELECT CASE t.tracking WHEN 'offset_watermark' THEN h.head ELSE e.tracked_until END,
           greatest(lower(p.pending), e.first_offset)
    INTO v_last, v_first
    FROM {schema}.topic t
    JOIN {schema}.head h ON h.topic_id = t.topic_id
    JOIN {schema}.extent e ON e.topic_id = t.topic_id
    CROSS JOIN {schema}.place_of(s.subscription_id) p
    WHERE t.topic_id = s.topic_id;
    v_first := greatest(v_first, v_last - least(p_messages_max, v_last) + 1);
    DELETE FROM {schema}.backfill b WHERE b.subscription_id = s.subscription_id;
    INSERT INTO {schema}.backfill (subscription_id, state, first_offset, last_offset, checkpoint, rate_max, created_at)
    VALUES (s.subscription_id, CASE WHEN v_first > v_last THEN 'completed' ELSE 'not_started' END, v_first,
            greatest(v_last, v_first - 1), v_first - 1, p_rate_max, v_now);
    PERFORM {schema}.note_act(p_actor, 'backfill', p_topic, p_group,
        jsonb_build_object('first', v_first, 'last', v_last, 'rate_max', p_rate_max), p_now);
    RETURN s.subscription_id;
END $$;
COMMENT ON FUNCTION {schema}.start_backfill IS 'granted to consumer: starts a backfill';

-- Cancels a backfill that is under way, or lets a cancelled or failed one of a group that counts go on from its checkpoint.
CREATE FUNCTION {schema}.turn_backfill(p_topic text, p_group text, p_resume boolean, p_actor text, p_now {schema}.injected_time) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s {schema}.subscription := {schema}.locked_group(p_topic, p_group);
    v_act text := CASE WHEN p_resume THEN 'resume_backfill' ELSE 'cancel_backfill' END;
    v_from text[] := CASE WHEN p_resume THEN ARRAY['cancelled', 'failed'] ELSE ARRAY['not_started', 'in_progress'] END;
    v_state text;
BEGIN
    SELECT b.state INTO v_state FROM {schema}.backfills(s.subscription_id) b;
    IF v_state IS NULL OR NOT v_state = ANY (v_from) THEN
        RAISE EXCEPTION USING ERRCODE = 'HW007', MESSAGE = format(
            'invalid transition: the backfill of topic %s, group %s is %s; %s needs %s; nothing was changed', p_topic, p_group,
            coalesce(v_state, 'missing'), v_act, array_to_string(v_from, ' or '));
    END IF;
    IF p_resume AND s.status NOT IN ('active', 'paused') THEN
        RAISE EXCEPTION USING ERRCODE = 'HW007', MESSAGE = format(
            'invalid transition: topic %s, group %s is %s; a backfill needs active or paused; nothing was changed',
            p_topic, p_group, s.status);
    END IF;
    UPDATE {schema}.backfill b
    SET state = CASE WHEN NOT p_resume THEN 'cancelled' WHEN b.checkpoint < b.first_offset THEN 'not_started' ELSE 'in_progress' END,
        error = NULL, worker = NULL, worker_until = NULL
    WHERE b.subscription_id = s.subscription_id;
    PERFORM {schema}.note_act(p_actor, v_act, p_topic, p_group, '{}', p_now);
    RETURN s.subscription_id;
END $$;
COMMENT ON FUNCTION {schema}.turn_backfill IS 'granted to consumer: cancels and resumes backfills';

-- Gives a worker a backfill that has work and no other worker, the oldest; null if there is none. Its own first.
CREATE FUNCTION {schema}.take_backfill(p_worker text, p_lease_ms bigint, p_now {schema}.injected_time) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_id integer;
BEGIN
    SELECT b.subscription_id INTO v_id FROM {schema}.backfill b
    JOIN {schema}.subscription s ON s.subscription_id = b.subscription_id
    JOIN {schema}.topic t ON t.topic_id = s.topic_id
    WHERE b.state IN ('not_started', 'in_progress') AND t.tracking = 'reference_counting'
      AND {schema}.counts(s.status, t.semantics) AND s.bit IS NOT NULL
      -- Or it was given by a clock that was ahead: nobody waits for that time.
      AND (b.worker IS NULL OR b.worker = p_worker OR b.worker_until <= v_now
           OR b.worker_until > v_now + make_interval(secs => p_lease_ms / 1000.0))
    ORDER BY b.worker = p_worker DESC NULLS LAST, b.created_at, b.subscription_id
    LIMIT 1 FOR UPDATE OF b SKIP LOCKED;
    UPDATE {schema}.backfill b
    SET state = 'in_progress', worker = p_worker, worker_until = v_now + make_interval(secs => p_lease_ms / 1000.0),
        progressed_at = coalesce(b.progressed_at, v_now)
    WHERE b.subscription_id = v_id;
    RETURN v_id;
END $$;
COMMENT ON FUNCTION {schema}.take_backfill IS 'granted to consumer: gives backfills to workers';

-- One batch of a worker's backfill; nulls if it is not this worker's any more, or was cancelled, or went with its group.
CREATE FUNCTION {schema}.step_backfill(
    p_subscription_id integer, p_worker text, p_max integer, p_lease_ms bigint, p_now {schema}.injected_time,
    OUT processed bigint, OUT changed bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_began timestamptz := clock_timestamp();
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    e {schema}.extent;
    b {schema}.backfill;
    v_topic integer;
    v_from bigint;
    v_to bigint;
    v_span int8multirange;
    v_mask bigint;
    v_place record;
    v_r record;
    v_count bigint;
BEGIN
    SELECT s.topic_id INTO v_topic FROM {schema}.subscription s WHERE s.subscription_id = p_subscription_id;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    e := {schema}.begin_upkeep(v_topic);
    SELECT x.* INTO b FROM {schema}.backfill x
    WHERE x.subscription_id = p_subscription_id AND x.worker = p_worker AND x.state = 'in_progress' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT q.*, {schema}.gaps(e.topic_id) AS gaps INTO v_place FROM {schema}.place_of(p_subscription_id) q;
    IF v_place.bit IS NULL OR NOT v_place.counts THEN
        RETURN;
    END IF;
    v_mask := 1::bigint << v_place.bit;
    changed := 0;
    -- What has no pending record needs no look: it is passed over and does not count for the batch.
    v_from := greatest(b.checkpoint, e.pending_from - 1);
    v_to := least(v_from + p_max, b.last_offset);
    v_span := int8multirange(int8range(v_from + 1, greatest(v_to, v_from) + 1));
    -- Done and not done, by stretches: a record gets both bits, or one.
    FOR v_r IN SELECT lower(r) AS first, upper(r) - 1 AS last, kind.done
               FROM (VALUES (true), (false)) kind (done),
                    unnest(CASE WHEN kind.done THEN v_span - v_place.pending - v_place.gaps
                                ELSE v_span * (v_place.pending + v_place.gaps) END) r
    LOOP
        UPDATE {schema}.record r
        SET required = r.required | v_mask, completed = CASE WHEN v_r.done THEN r.completed | v_mask ELSE r.completed & ~v_mask END
        WHERE r.topic_id = e.topic_id AND r.message_offset BETWEEN v_r.first AND v_r.last AND r.completed_at IS NULL
          AND (r.required & v_mask = 0 OR v_r.done <> (r.completed & v_mask <> 0));
        GET DIAGNOSTICS v_count = ROW_COUNT;
        changed := changed + v_count;
    END LOOP;
    -- What is now required and not done must be a difference once it is done, whatever was applied before.
    UPDATE {schema}.subscription s
    SET applied = s.applied - v_span * (v_place.pending + v_place.gaps)
    WHERE s.subscription_id = p_subscription_id AND s.applied && (v_span * (v_place.pending + v_place.gaps));
    processed := v_to - b.checkpoint;
    UPDATE {schema}.backfill x
    SET checkpoint = v_to, state = CASE WHEN v_to >= b.last_offset THEN 'completed' ELSE 'in_progress' END,
        worker = CASE WHEN v_to < b.last_offset THEN p_worker END,
        worker_until = CASE WHEN v_to < b.last_offset THEN v_now + make_interval(secs => p_lease_ms / 1000.0) END,
        -- Breaks of a worker count, those between workers do not.
        ran_ms = b.ran_ms + ceil(extract(epoch FROM clock_timestamp() - v_began) * 1000)::bigint
                 + greatest(least((extract(epoch FROM v_now - b.progressed_at) * 1000)::bigint, p_lease_ms), 0),
        progressed_at = v_now
    WHERE x.subscription_id = p_subscription_id;
END $$;
COMMENT ON FUNCTION {schema}.step_backfill IS 'granted to consumer: does a batch of a backfill';

-- Stops a backfill that an error ended, with the error.
CREATE FUNCTION {schema}.fail_backfill(p_subscription_id integer, p_worker text, p_error text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE {schema}.backfill b SET state = 'failed', error = p_error, worker = NULL, worker_until = NULL
    WHERE b.subscription_id = p_subscription_id AND b.worker = p_worker AND b.state = 'in_progress'
$$;
COMMENT ON FUNCTION {schema}.fail_backfill IS 'granted to consumer: notes why a backfill stopped';
