-- Promotes scheduled messages that are due.

-- The budget of a transaction in bytes, derived from its budget in messages: after a statement timed out the client lowers one
-- number, and both follow. For a thousand messages it is 16 MB, which takes a slow disk one second of the statement timeout of
-- thirty.
CREATE OR REPLACE FUNCTION {schema}.promote_bytes(p_max integer) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT p_max::bigint * 16384 $$;

-- Moves due messages of a topic from the schedule into its log: at most p_max messages and p_bytes_max bytes, but at least one
-- message, so that a message larger than the budget is promoted too. Rows that another transaction is moving are skipped. The
-- length of a payload is read without the payload.
CREATE OR REPLACE FUNCTION {schema}.promote(
    p_topic_id integer, p_max integer, p_bytes_max bigint, p_now timestamptz, OUT messages bigint, OUT bytes bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_sequence regclass;
    v_due record;
    v_offset bigint;
BEGIN
    messages := 0;
    bytes := 0;
    IF NOT EXISTS (SELECT FROM {schema}.schedule s WHERE s.topic_id = p_topic_id AND s.deliver_at <= v_now) THEN
        RETURN;
    END IF;
    PERFORM pg_current_xact_id();
    SELECT t.offsets INTO v_sequence FROM {schema}.topic t WHERE t.topic_id = p_topic_id;
    IF strpos(coalesce(current_setting('headwater.offsets_{name}', true), ''), ' ' || p_topic_id || ' ') = 0 THEN
        PERFORM {schema}.check_offsets(p_topic_id);
    END IF;
    FOR v_due IN
        SELECT * FROM {schema}.schedule s WHERE s.topic_id = p_topic_id AND s.deliver_at <= v_now
        ORDER BY s.deliver_at, s.schedule_id LIMIT p_max FOR UPDATE SKIP LOCKED
    LOOP
        EXIT WHEN messages > 0 AND bytes + octet_length(v_due.payload) > p_bytes_max;
        DELETE FROM {schema}.schedule s WHERE s.schedule_id = v_due.schedule_id;
        v_offset := {schema}.append_one(p_topic_id, v_sequence, v_now, v_due.message_id, v_due.key, v_due.message_type, v_due.payload,
                                        v_due.content_type, v_due.headers, v_due.correlation_id);
        IF v_due.dedup_key IS NOT NULL THEN
            -- Not waited for: an open transaction that published the key again may have locked the row. Then its offset stays null.
            UPDATE {schema}.dedup d SET message_offset = v_offset
            WHERE d.ctid = (SELECT x.ctid FROM {schema}.dedup x WHERE x.topic_id = p_topic_id
                            AND x.dedup_key = v_due.dedup_key AND x.message_id = v_due.message_id FOR UPDATE SKIP LOCKED);
        END IF;
        messages := messages + 1;
        bytes := bytes + octet_length(v_due.payload);
    END LOOP;
    IF messages > 0 THEN
        PERFORM {schema}.wake(p_topic_id, true, false);
    END IF;
END $$;
