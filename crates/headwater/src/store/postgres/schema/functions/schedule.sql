-- Scheduled messages: cancelled or moved before they are due.
--
-- A message is cancelled or delivered, never both. promote() locks the rows that it moves, skips those that are locked, and deletes
-- them in the transaction that appends their messages to the log. So a cancellation waits for a promotion and then finds no row,
-- or the promotion skips the row, which is gone afterwards. The same holds for a move: a row that was moved to a later time while
-- a promotion waited to lock it no longer satisfies the promotion's condition, which is checked again.
--
-- The row of a dedup key is locked last. Its lock may be held by a transaction that publishes the same key; that transaction waits
-- for no row of the schedule.

-- Cancels the scheduled messages of a topic with this id; false if there is none.
CREATE OR REPLACE FUNCTION {schema}.cancel_scheduled(p_topic text, p_message_id uuid, p_actor text, p_now {schema}.injected_time)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_topic integer := {schema}.topic_id_of(p_topic);
    v_deliver_at timestamptz;
    v_keys text[];
BEGIN
    WITH cancelled AS (
        DELETE FROM {schema}.schedule s WHERE s.topic_id = v_topic AND s.message_id = p_message_id
        RETURNING s.deliver_at, s.dedup_key
    )
    SELECT min(c.deliver_at), array_agg(c.dedup_key) INTO v_deliver_at, v_keys FROM cancelled c;
    IF v_deliver_at IS NULL THEN
        RETURN false;
    END IF;
    DELETE FROM {schema}.dedup d
    WHERE d.topic_id = v_topic AND d.dedup_key = ANY (v_keys) AND d.message_id = p_message_id;
    PERFORM {schema}.note_act(p_actor, 'cancel_scheduled', p_topic, NULL, jsonb_build_object(
        'message_id', p_message_id, 'deliver_at_ms', floor(extract(epoch FROM v_deliver_at) * 1000)::bigint), p_now);
    RETURN true;
END $$;

-- Moves the scheduled messages of a topic with this id to a time, or by a delay from now, and wakes waiters: they claim again when it is
-- due. Null if there is none.
CREATE OR REPLACE FUNCTION {schema}.move_scheduled(
    p_topic text, p_message_id uuid, p_at timestamptz, p_delay_ms bigint, p_actor text, p_now {schema}.injected_time
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_topic integer := {schema}.topic_id_of(p_topic);
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_to timestamptz := coalesce(v_now + make_interval(secs => p_delay_ms / 1000.0), p_at);
    v_from timestamptz;
BEGIN
    IF v_to > v_now + interval '366 days' OR v_to IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid deliver_at: more than 366 days from now';
    END IF;
    SELECT min(s.deliver_at) INTO v_from
    FROM (SELECT x.deliver_at FROM {schema}.schedule x WHERE x.topic_id = v_topic AND x.message_id = p_message_id
          ORDER BY x.schedule_id FOR UPDATE) s;
    IF v_from IS NULL THEN
        RETURN NULL;
    END IF;
    UPDATE {schema}.schedule s SET deliver_at = v_to WHERE s.topic_id = v_topic AND s.message_id = p_message_id;
    PERFORM {schema}.wake(v_topic, false, true);
    PERFORM {schema}.note_act(p_actor, 'reschedule', p_topic, NULL, jsonb_build_object(
        'message_id', p_message_id, 'from_ms', floor(extract(epoch FROM v_from) * 1000)::bigint,
        'to_ms', floor(extract(epoch FROM v_to) * 1000)::bigint), p_now);
    RETURN v_topic;
END $$;
