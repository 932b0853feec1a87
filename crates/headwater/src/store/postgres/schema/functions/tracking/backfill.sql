-- Backfills, which add a group that subscribed later to existing completion records.
--
-- A backfill covers offsets up to an end fixed when it starts. Each batch is one transaction with its checkpoint: if it is
-- killed, the backfill continues from the last checkpoint. Setting a bit that is set changes nothing, so a repeated batch does no
-- harm either. Between batches the group continues to consume: the record gets the group's bit, and whether the message is done
-- by then; messages done later differ from subscription.applied, and tracking sets their bits. A record may have the group's bit
-- already; if the group was the last that it waited for, it is completed here, because tracking then finds nothing to change in it.

-- Backfills with their progress. In the mode offset watermark there is nothing to do: the backfill shows the progress of the group.
CREATE OR REPLACE FUNCTION {schema}.backfills(p_subscription_id integer)
RETURNS TABLE (topic text, group_name text, state text, first_offset bigint, last_offset bigint, checkpoint bigint,
               created_at timestamptz, progressed_at timestamptz, ran_ms bigint, rate_max integer, batch_max integer,
               target_latency_ms bigint, error text, left_out bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.name, s.group_name,
           CASE WHEN f.floor IS NULL OR b.state IN ('cancelled', 'failed') THEN b.state
                WHEN f.floor >= b.last_offset THEN 'completed' ELSE 'in_progress' END,
           b.first_offset, b.last_offset,
           CASE WHEN f.floor IS NULL THEN b.checkpoint ELSE greatest(least(f.floor, b.last_offset), b.checkpoint) END,
           b.created_at, b.progressed_at, b.ran_ms, b.rate_max, b.batch_max, b.target_latency_ms, b.error, b.left_out
    FROM {schema}.backfill b
    JOIN {schema}.subscription s ON s.subscription_id = b.subscription_id
    JOIN {schema}.topic t ON t.topic_id = s.topic_id
    CROSS JOIN LATERAL (SELECT CASE WHEN t.tracking = 'offset_watermark' THEN (
        SELECT lower(p.pending) - 1 FROM {schema}.progress_of(s.subscription_id) p) END AS floor) f
    WHERE p_subscription_id IS NULL OR b.subscription_id = p_subscription_id
    ORDER BY b.created_at DESC, b.subscription_id DESC
$$;

-- The group an operator names, under the lock of its topic range.
CREATE OR REPLACE FUNCTION {schema}.locked_group(p_topic text, p_group text) RETURNS {schema}.subscription
LANGUAGE plpgsql AS $$
DECLARE
    v_topic integer := {schema}.topic_id_of(p_topic);
    s {schema}.subscription;
BEGIN
    PERFORM {schema}.begin_maintenance(v_topic);
    SELECT x.* INTO s FROM {schema}.subscription x
    WHERE x.topic_id = v_topic AND x.group_name = p_group AND x.state <> 'cancelled';
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW005', MESSAGE = format(
            'no such subscription: topic %s, group %s; see `headwater group list %s`', p_topic, p_group, p_topic);
    END IF;
    RETURN s;
END $$;

-- Starts a backfill for an operator; returns its subscription.
CREATE OR REPLACE FUNCTION {schema}.start_backfill(
    p_topic text, p_group text, p_messages_max bigint, p_rate_max integer, p_batch_max integer, p_target_latency_ms bigint,
    p_actor text, p_now {schema}.injected_time
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    s {schema}.subscription := {schema}.locked_group(p_topic, p_group);
    v_pending bigint;
    v_first bigint;
    v_last bigint;
    v_left_out bigint;
BEGIN
    IF EXISTS (SELECT FROM {schema}.backfills(s.subscription_id) b WHERE b.state IN ('not_started', 'in_progress')) THEN
        RAISE EXCEPTION USING ERRCODE = 'HW008', MESSAGE = format(
            'a backfill is under way: topic %s, group %s; wait for it or cancel it', p_topic, p_group);
    END IF;
    IF s.state NOT IN ('active', 'paused') THEN
        RAISE EXCEPTION USING ERRCODE = 'HW007', MESSAGE = format(
            'invalid transition: topic %s, group %s is %s; a backfill needs active or paused; nothing was changed',
            p_topic, p_group, s.state);
    END IF;
    SELECT CASE t.tracking WHEN 'offset_watermark' THEN h.head ELSE e.tracked_until END,
           greatest(lower(p.pending), e.first_offset)
    INTO v_last, v_pending
    FROM {schema}.topic t
    JOIN {schema}.head h ON h.topic_id = t.topic_id
    JOIN {schema}.topic_range e ON e.topic_id = t.topic_id
    CROSS JOIN {schema}.progress_of(s.subscription_id) p
    WHERE t.topic_id = s.topic_id;
    v_first := greatest(v_pending, v_last - least(p_messages_max, v_last) + 1);
    -- Without records there is nothing to leave out.
    v_left_out := CASE WHEN s.bit IS NULL THEN 0 ELSE v_first - v_pending END;
    DELETE FROM {schema}.backfill b WHERE b.subscription_id = s.subscription_id;
    INSERT INTO {schema}.backfill (subscription_id, state, first_offset, last_offset, checkpoint, rate_max, batch_max,
                                   target_latency_ms, created_at, left_out)
    VALUES (s.subscription_id, CASE WHEN v_first > v_last THEN 'completed' ELSE 'not_started' END, v_first,
            greatest(v_last, v_first - 1), v_first - 1, p_rate_max, p_batch_max, p_target_latency_ms, v_now, v_left_out);
    PERFORM {schema}.note_act(p_actor, 'backfill', p_topic, p_group,
        jsonb_build_object('first', v_first, 'last', greatest(v_last, v_first - 1), 'messages_max', p_messages_max, 'rate_max', p_rate_max,
                           'batch_max', p_batch_max, 'target_latency_ms', p_target_latency_ms),
        p_now);
    RETURN s.subscription_id;
END $$;

-- Cancels a running backfill, or resumes a cancelled or failed one of an active or paused group from its checkpoint.
CREATE OR REPLACE FUNCTION {schema}.turn_backfill(p_topic text, p_group text, p_resume boolean, p_actor text, p_now {schema}.injected_time) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s {schema}.subscription := {schema}.locked_group(p_topic, p_group);
    v_act text := CASE WHEN p_resume THEN 'resume_backfill' ELSE 'cancel_backfill' END;
    v_from text[] := CASE WHEN p_resume THEN ARRAY['cancelled', 'failed'] ELSE ARRAY['not_started', 'in_progress'] END;
    v_state text;
    v_checkpoint bigint;
BEGIN
    SELECT b.state, b.checkpoint INTO v_state, v_checkpoint FROM {schema}.backfills(s.subscription_id) b;
    IF v_state IS NULL OR NOT v_state = ANY (v_from) THEN
        RAISE EXCEPTION USING ERRCODE = 'HW007', MESSAGE = format(
            'invalid transition: the backfill of topic %s, group %s is %s; %s needs %s; nothing was changed', p_topic, p_group,
            coalesce(v_state, 'missing'), v_act, array_to_string(v_from, ' or '));
    END IF;
    IF p_resume AND s.state NOT IN ('active', 'paused') THEN
        RAISE EXCEPTION USING ERRCODE = 'HW007', MESSAGE = format(
            'invalid transition: topic %s, group %s is %s; a backfill needs active or paused; nothing was changed',
            p_topic, p_group, s.state);
    END IF;
    UPDATE {schema}.backfill b
    SET state = CASE WHEN NOT p_resume THEN 'cancelled' WHEN b.checkpoint < b.first_offset THEN 'not_started' ELSE 'in_progress' END,
        error = NULL, worker = NULL, worker_until = NULL
    WHERE b.subscription_id = s.subscription_id;
    PERFORM {schema}.note_act(p_actor, v_act, p_topic, p_group, jsonb_build_object('checkpoint', v_checkpoint), p_now);
    RETURN s.subscription_id;
END $$;

-- Takes a backfill for a worker: its own if it has one, otherwise the oldest without a worker; null if there is none.
CREATE OR REPLACE FUNCTION {schema}.take_backfill(p_worker text, p_lease_ms bigint, p_now {schema}.injected_time) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_id integer;
BEGIN
    SELECT b.subscription_id INTO v_id FROM {schema}.backfill b
    JOIN {schema}.subscription s ON s.subscription_id = b.subscription_id
    JOIN {schema}.topic t ON t.topic_id = s.topic_id
    WHERE b.state IN ('not_started', 'in_progress') AND t.tracking = 'reference_counting'
      AND {schema}.counts(s.state, t.semantics) AND s.bit IS NOT NULL
      -- A lease that ends too late was stored while the clock was ahead: it is not waited for.
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

-- One batch of a worker's backfill; nulls if another worker has it, or it was cancelled or deleted with its group.
CREATE OR REPLACE FUNCTION {schema}.step_backfill(
    p_subscription_id integer, p_worker text, p_max integer, p_lease_ms bigint, p_now {schema}.injected_time,
    OUT processed bigint, OUT changed bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_began timestamptz := clock_timestamp();
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    e {schema}.topic_range;
    b {schema}.backfill;
    v_topic integer;
    v_from bigint;
    v_to bigint;
    v_span int8multirange;
    v_done int8multirange;
    v_mask bigint;
    v_progress record;
    v_r record;
    v_count bigint;
BEGIN
    SELECT s.topic_id INTO v_topic FROM {schema}.subscription s WHERE s.subscription_id = p_subscription_id;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    e := {schema}.begin_maintenance(v_topic);
    SELECT x.* INTO b FROM {schema}.backfill x
    WHERE x.subscription_id = p_subscription_id AND x.worker = p_worker AND x.state = 'in_progress' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT q.*, {schema}.gaps(e.topic_id) AS gaps INTO v_progress FROM {schema}.progress_of(p_subscription_id) q;
    IF v_progress.bit IS NULL OR NOT v_progress.counts THEN
        RETURN;
    END IF;
    v_mask := 1::bigint << v_progress.bit;
    changed := 0;
    -- Offsets below the first pending record are skipped and do not count towards the batch.
    v_from := greatest(b.checkpoint, e.pending_from - 1);
    v_to := least(v_from + least(p_max, b.batch_max), b.last_offset);
    v_span := int8multirange(int8range(v_from + 1, greatest(v_to, v_from) + 1));
    v_done := v_span - v_progress.pending - v_progress.gaps;
    -- Done and not done, range by range: a record gets both bits, or only the required one.
    FOR v_r IN SELECT lower(r) AS first, upper(r) - 1 AS last, kind.done
               FROM (VALUES (true), (false)) kind (done), unnest(CASE WHEN kind.done THEN v_done ELSE v_span - v_done END) r
    LOOP
        UPDATE {schema}.completion_record r
        SET required = r.required | v_mask, completed = CASE WHEN v_r.done THEN r.completed | v_mask ELSE r.completed & ~v_mask END,
            completed_at = CASE WHEN v_r.done AND r.required | v_mask = r.completed | v_mask THEN v_now END
        WHERE r.topic_id = e.topic_id AND r.message_offset BETWEEN v_r.first AND v_r.last AND r.completed_at IS NULL
          AND (r.required & v_mask = 0 OR v_r.done <> (r.completed & v_mask <> 0));
        GET DIAGNOSTICS v_count = ROW_COUNT;
        changed := changed + v_count;
    END LOOP;
    -- What was set is applied, and nothing else, whatever was applied before: tracking finds what differs from it later.
    UPDATE {schema}.subscription s SET applied = s.applied - v_span + v_done
    WHERE s.subscription_id = p_subscription_id AND s.applied * v_span <> v_done;
    processed := v_to - b.checkpoint;
    UPDATE {schema}.backfill x
    SET checkpoint = v_to, state = CASE WHEN v_to >= b.last_offset THEN 'completed' ELSE 'in_progress' END,
        worker = CASE WHEN v_to < b.last_offset THEN p_worker END,
        worker_until = CASE WHEN v_to < b.last_offset THEN v_now + make_interval(secs => p_lease_ms / 1000.0) END,
        -- Pauses of a worker count, those between workers do not.
        ran_ms = b.ran_ms + ceil(extract(epoch FROM clock_timestamp() - v_began) * 1000)::bigint
                 + greatest(least((extract(epoch FROM v_now - b.progressed_at) * 1000)::bigint, p_lease_ms), 0),
        progressed_at = v_now
    WHERE x.subscription_id = p_subscription_id;
END $$;

-- Marks a backfill as failed, with its error.
CREATE OR REPLACE FUNCTION {schema}.fail_backfill(p_subscription_id integer, p_worker text, p_error text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE {schema}.backfill b SET state = 'failed', error = p_error, worker = NULL, worker_until = NULL
    WHERE b.subscription_id = p_subscription_id AND b.worker = p_worker AND b.state = 'in_progress'
$$;
