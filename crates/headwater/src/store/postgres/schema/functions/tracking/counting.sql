-- Which groups count in completion records, and changes of the tracking mode.

-- A free bit: never used, or in no record.
CREATE OR REPLACE FUNCTION {schema}.free_bit(p_topic_id integer) RETURNS smallint
LANGUAGE plpgsql AS $$
DECLARE
    v_used bigint;
    v_topic text;
    v_bit smallint;
BEGIN
    SELECT e.bits_used INTO v_used FROM {schema}.topic_range e WHERE e.topic_id = p_topic_id;
    -- Unused bits first, without a search of the records: there may be millions.
    FOR v_bit IN
        SELECT b FROM generate_series(0, 63) b
        -- A cancelled subscription that is released may stay for its dead letters; it needs its bit only if a record still has it.
        WHERE NOT EXISTS (SELECT FROM {schema}.subscription s WHERE s.topic_id = p_topic_id AND s.bit = b
                          AND (s.state <> 'cancelled' OR s.released_until IS NOT NULL))
        ORDER BY v_used & (1::bigint << b) <> 0, b
    LOOP
        CONTINUE WHEN v_used & (1::bigint << v_bit) <> 0 AND EXISTS (
            SELECT FROM {schema}.completion_record r WHERE r.topic_id = p_topic_id AND (r.required | r.completed) & (1::bigint << v_bit) <> 0);
        UPDATE {schema}.topic_range e SET bits_used = e.bits_used | (1::bigint << v_bit) WHERE e.topic_id = p_topic_id;
        UPDATE {schema}.subscription s SET bit = NULL WHERE s.topic_id = p_topic_id AND s.bit = v_bit;
        RETURN v_bit;
    END LOOP;
    SELECT t.name INTO v_topic FROM {schema}.topic t WHERE t.topic_id = p_topic_id;
    RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
        'invalid group: topic %s would have more than the 64 groups that reference_counting can distinguish (those cancelled count until no '
        'stored message names them); any number is possible with tracking offset_watermark',
        v_topic);
END $$;

-- Prepares a subscription that begins to count, or counts again: its bit, from where it is required, what is applied, and a
-- backfill for existing records. Runs under the lock of the topic range, and takes the head's: see record_late. In the mode offset
-- watermark the backfill only shows how far the group has caught up.
-- p_new has the limits of the backfill as for subscribe.
CREATE OR REPLACE FUNCTION {schema}.start_counting(p_subscription_id integer, p_now timestamptz, p_new jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    t {schema}.topic;
    e {schema}.topic_range;
    p {schema}.progress;
    v_head bigint;
    v_gaps int8multirange;
    v_bit smallint;
    v_first bigint;
    v_last bigint;
    v_left_out bigint := 0;
BEGIN
    SELECT x.* INTO STRICT t FROM {schema}.topic x JOIN {schema}.subscription s ON s.topic_id = x.topic_id
    WHERE s.subscription_id = p_subscription_id;
    PERFORM FROM {schema}.head h WHERE h.topic_id = t.topic_id FOR SHARE;
    SELECT q.* INTO STRICT p FROM {schema}.progress_of(p_subscription_id) q;
    SELECT x.* INTO STRICT e FROM {schema}.topic_range x WHERE x.topic_id = t.topic_id;
    SELECT h.head, {schema}.gaps(t.topic_id) INTO v_head, v_gaps FROM {schema}.head h WHERE h.topic_id = t.topic_id;
    -- Messages published while no subscription counted keep their minimum retention.
    UPDATE {schema}.topic_range x SET zero_until = {schema}.last_taken(t.topic_id) WHERE x.topic_id = t.topic_id AND x.zero_until IS NULL;
    v_first := greatest(lower(p.pending), e.first_offset);
    IF t.tracking = 'offset_watermark' THEN
        v_last := v_head;
        UPDATE {schema}.subscription s SET required_from = p.next_offset WHERE s.subscription_id = p_subscription_id;
    ELSE
        v_last := e.tracked_until;
        v_left_out := greatest(v_last - least(coalesce((p_new ->> 'messages_max')::bigint, 1000000), v_last) + 1 - v_first, 0);
        v_first := v_first + v_left_out;
        v_bit := coalesce(p.bit, {schema}.free_bit(t.topic_id));
        -- Nothing has to be set for messages done already: no pending record has its bit, and a backfill sets it together with the
        -- completion. But if it counts again before it was released from all records, some still have its bit, and what was
        -- applied to them when it stopped counting: tracking applies what differs from that.
        UPDATE {schema}.subscription s
        SET bit = v_bit, required_from = p.next_offset, released_until = NULL,
            applied = CASE WHEN s.released_until IS NULL
                THEN int8multirange(int8range(e.first_offset, greatest(e.tracked_until + 1, e.first_offset))) - p.pending - v_gaps
                ELSE s.applied END
        WHERE s.subscription_id = p_subscription_id;
    END IF;
    DELETE FROM {schema}.backfill b WHERE b.subscription_id = p_subscription_id;
    IF v_first <= v_last THEN
        INSERT INTO {schema}.backfill (subscription_id, state, first_offset, last_offset, checkpoint, rate_max, batch_max,
                                       target_latency_ms, created_at, left_out)
        VALUES (p_subscription_id, 'not_started', v_first, v_last, v_first - 1, coalesce((p_new ->> 'rate_max')::integer, 50000),
                (p_new ->> 'batch_max')::integer, (p_new ->> 'target_latency_ms')::bigint, v_now, v_left_out);
    END IF;
END $$;

-- Stops counting a subscription that died or was cancelled; its state is already set. Runs under the lock of the topic range and takes
-- the head's, so that after this no late message is handed out to a cancelled subscription, or recorded for either. Pending records
-- are released from it step by step: see release_records.
CREATE OR REPLACE FUNCTION {schema}.stop_counting(p_subscription_id integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    s {schema}.subscription;
BEGIN
    -- A dead subscription of a queue still counts.
    IF (SELECT {schema}.counts(x.state, t.semantics) FROM {schema}.subscription x JOIN {schema}.topic t ON t.topic_id = x.topic_id
        WHERE x.subscription_id = p_subscription_id) THEN
        RETURN;
    END IF;
    PERFORM FROM {schema}.head h
    WHERE h.topic_id = (SELECT x.topic_id FROM {schema}.subscription x WHERE x.subscription_id = p_subscription_id) FOR SHARE;
    UPDATE {schema}.subscription x SET released_until = CASE WHEN x.bit IS NOT NULL THEN 0 END
    WHERE x.subscription_id = p_subscription_id RETURNING x.* INTO STRICT s;
    UPDATE {schema}.backfill b SET state = 'cancelled', worker = NULL, worker_until = NULL
    WHERE b.subscription_id = p_subscription_id AND b.state IN ('not_started', 'in_progress');
    IF s.state = 'cancelled' THEN
        DELETE FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id;
    END IF;
    -- Messages published while no subscription counts have a minimum retention of their own: see topic_range.zero_until.
    UPDATE {schema}.topic_range e SET zero_until = NULL, zero_from = {schema}.last_taken(s.topic_id) + 1
    WHERE e.topic_id = s.topic_id AND e.zero_until IS NOT NULL AND NOT EXISTS (
        SELECT FROM {schema}.subscription x JOIN {schema}.topic t ON t.topic_id = x.topic_id
        WHERE x.topic_id = s.topic_id AND {schema}.counts(x.state, t.semantics));
END $$;

-- The topic became a queue, or pub/sub: its dead groups count from now on, or no longer. Runs under the lock of the topic range.
CREATE OR REPLACE FUNCTION {schema}.semantics_changed(p_topic_id integer, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    p {schema}.progress;
BEGIN
    FOR p IN SELECT q.* FROM {schema}.progress_list(p_topic_id) q WHERE q.state = 'dead' LOOP
        IF p.counts THEN
            PERFORM {schema}.start_counting(p.subscription_id, p_now);
        ELSE
            PERFORM {schema}.stop_counting(p.subscription_id);
        END IF;
    END LOOP;
END $$;

-- Changes the tracking mode of a topic; "track" then does the work. Runs under the lock of the topic range, and takes the head's: a late
-- message is recorded only according to the mode that its hand-out sees.
CREATE OR REPLACE FUNCTION {schema}.change_tracking(p_topic_id integer, p_target text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    t {schema}.topic;
    e {schema}.topic_range;
    v_head bigint;
    v_subscription integer;
BEGIN
    SELECT x.* INTO STRICT t FROM {schema}.topic x WHERE x.topic_id = p_topic_id;
    SELECT x.* INTO STRICT e FROM {schema}.topic_range x WHERE x.topic_id = p_topic_id;
    IF t.tracking = p_target THEN
        RETURN;
    END IF;
    IF e.change_until IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW008', MESSAGE = format(
            'a change of tracking is under way: topic %s becomes %s; wait until it is done, see `headwater topic show`', t.name, t.tracking);
    END IF;
    SELECT h.head INTO STRICT v_head FROM {schema}.head h WHERE h.topic_id = p_topic_id FOR UPDATE;
    UPDATE {schema}.topic x SET settings = x.settings || jsonb_build_object('tracking', p_target) WHERE x.topic_id = p_topic_id;
    IF p_target = 'offset_watermark' THEN
        UPDATE {schema}.topic_range x SET change_until = greatest(x.tracked_until, 0), pending_from = x.first_offset WHERE x.topic_id = p_topic_id;
        RETURN;
    END IF;
    UPDATE {schema}.topic_range x
    SET tracked_until = x.first_offset - 1, pending_from = x.first_offset,
        change_until = CASE WHEN v_head >= x.first_offset THEN v_head END
    WHERE x.topic_id = p_topic_id;
    -- Each record is created with what is done by then, so nothing is applied yet and no backfill is needed.
    FOR v_subscription IN SELECT s.subscription_id FROM {schema}.subscription s
                          WHERE s.topic_id = p_topic_id AND s.state <> 'cancelled' ORDER BY s.subscription_id
    LOOP
        UPDATE {schema}.subscription s SET bit = {schema}.free_bit(p_topic_id), applied = '{}', released_until = NULL
        WHERE s.subscription_id = v_subscription;
    END LOOP;
    UPDATE {schema}.backfill b SET state = 'completed', checkpoint = b.last_offset
    FROM {schema}.subscription s WHERE s.subscription_id = b.subscription_id AND s.topic_id = p_topic_id;
END $$;

-- The cursor of a subscription moved to an offset: messages from there on require it. "track" then corrects their records.
CREATE OR REPLACE FUNCTION {schema}.cursor_moved(p_subscription_id integer, p_to bigint) RETURNS void
LANGUAGE sql AS $$
    UPDATE {schema}.subscription s SET required_from = least(s.required_from, p_to) WHERE s.subscription_id = p_subscription_id
$$;

-- Deletes the completion records of removed messages. Messages in partitions keep their records until the partition is dropped.
CREATE OR REPLACE FUNCTION {schema}.forget_records(p_topic {schema}.topic, p_first bigint, p_last bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.completion_record x
    WHERE x.topic_id = p_topic.topic_id AND x.message_offset BETWEEN p_first AND p_last
      AND (p_topic.partition = 'none' OR NOT EXISTS (SELECT FROM {schema}.partition y WHERE y.topic_id = p_topic.topic_id
                      AND x.message_offset BETWEEN y.first_offset AND y.last_offset));
END $$;

-- Deletes the completion records of a range of messages that a purge removes, also from partitions, which are not dropped for it.
CREATE OR REPLACE FUNCTION {schema}.forget_purged_records(p_topic_id integer, p_first bigint, p_last bigint) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM {schema}.completion_record x WHERE x.topic_id = p_topic_id AND x.message_offset BETWEEN p_first AND p_last
$$;

-- Deletes the lowest completion records below an offset, at most p_max; returns how many.
CREATE OR REPLACE FUNCTION {schema}.forget_records_below(p_topic_id integer, p_first bigint, p_max integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_records bigint;
BEGIN
    DELETE FROM {schema}.completion_record r WHERE r.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.completion_record x WHERE x.topic_id = p_topic_id AND x.message_offset < p_first
        ORDER BY x.message_offset LIMIT p_max));
    GET DIAGNOSTICS v_records = ROW_COUNT;
    RETURN v_records;
END $$;
