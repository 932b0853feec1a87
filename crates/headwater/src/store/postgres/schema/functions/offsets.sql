-- Where offsets come from, and how they continue after a failover.

-- The last offset taken, committed or not; for roles without rights on the sequence.
CREATE OR REPLACE FUNCTION {schema}.last_taken(p_topic_id integer) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(pg_sequence_last_value(t.offsets), 0) FROM {schema}.topic t WHERE t.topic_id = p_topic_id
$$;

-- The same of several topics, at the cost of one call.
CREATE OR REPLACE FUNCTION {schema}.last_taken_of(p_topic_ids integer[]) RETURNS TABLE (topic_id integer, last_taken bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.topic_id, coalesce(pg_sequence_last_value(t.offsets), 0) FROM {schema}.topic t WHERE t.topic_id = ANY (p_topic_ids)
$$;

-- Moves the sequences of all topics past the offsets that may have been used in lost commits, once on each timeline: applications
-- may have kept offsets of messages that a promoted standby never had. A million is more than a standby lags behind.
--
-- A publisher calls this inside its caller's transaction, which may stay open, roll back or be prepared. So the result is stored
-- in a sequence, which is not rolled back and visible to all sessions at once, and the lock ends with a subtransaction that is
-- rolled back. Only one session moves the sequences, because the value is read again under the lock; a second move could set them
-- back. In the write-ahead log the value comes after the moves: a crash or a standby that keeps the value keeps the moves.
CREATE OR REPLACE FUNCTION {schema}.pass_lost_offsets() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_timeline bigint := ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint;
BEGIN
    IF pg_sequence_last_value('{schema}.offsets_timeline') = v_timeline THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM FROM {schema}.epoch_history h WHERE h.cause = 'created' FOR UPDATE;
        IF pg_sequence_last_value('{schema}.offsets_timeline') IS DISTINCT FROM v_timeline THEN
            PERFORM setval(t.offsets, greatest(pg_sequence_last_value(t.offsets), h.head, 0) + 1000000)
            FROM {schema}.topic t JOIN {schema}.head h ON h.topic_id = t.topic_id;
            PERFORM setval('{schema}.offsets_timeline', v_timeline);
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'HW000', MESSAGE = 'lost offsets passed';
    EXCEPTION WHEN SQLSTATE 'HW000' THEN
        NULL;
    END;
END $$;

-- Makes a topic's offsets continue above the head if its sequence is behind: logical replication does not copy sequences, and
-- they can be set back. Messages with offsets at or below the head would never be delivered. Runs under FOR UPDATE of the head,
-- with a margin for offsets that others take between read and setval.
CREATE OR REPLACE FUNCTION {schema}.raise_offsets(p_topic_id integer, p_head bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_sequence regclass := (SELECT t.offsets FROM {schema}.topic t WHERE t.topic_id = p_topic_id);
    v_last bigint := coalesce(pg_sequence_last_value(v_sequence), 0);
BEGIN
    IF v_last < p_head THEN
        PERFORM setval(v_sequence, p_head + 1000);
        RAISE WARNING 'offsets raised: the sequence of topic % was at %, its head at %', p_topic_id, v_last, p_head;
    END IF;
END $$;

-- Makes sure, before a session takes its first offset of a topic, that the sequence is not behind the head. Later in the session it
-- cannot be: the head never passes the last offset taken. A setting of the session records the check.
CREATE OR REPLACE FUNCTION {schema}.check_offsets(p_topic_id integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_checked text := coalesce(current_setting('headwater.offsets_{name}', true), '') || ' ';
    v_head bigint;
BEGIN
    SELECT h.head INTO v_head FROM {schema}.head h WHERE h.topic_id = p_topic_id;
    IF v_head > (SELECT coalesce(pg_sequence_last_value(t.offsets), 0) FROM {schema}.topic t WHERE t.topic_id = p_topic_id) THEN
        -- Rolled back, so that the lock ends here and not with the caller's transaction; a sequence keeps its value.
        BEGIN
            SELECT h.head INTO v_head FROM {schema}.head h WHERE h.topic_id = p_topic_id FOR UPDATE;
            PERFORM {schema}.raise_offsets(p_topic_id, v_head);
            RAISE EXCEPTION USING ERRCODE = 'HW000', MESSAGE = 'offsets raised';
        EXCEPTION WHEN SQLSTATE 'HW000' THEN
            NULL;
        END;
    END IF;
    PERFORM set_config('headwater.offsets_{name}', v_checked || p_topic_id || ' ', false);
END $$;
