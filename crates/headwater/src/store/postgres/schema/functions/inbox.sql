-- The inbox: a handler processes a message once.

-- Enters a message for a handler: 1 if it is new, 0 if the handler has processed it. An open transaction that entered the same pair holds
-- us until it ends: only then is it known whether the effect happened.
CREATE OR REPLACE FUNCTION {schema}.insert_if_absent(message_id text, handler text, p_now {schema}.injected_time DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF message_id IS NULL OR handler IS NULL OR octet_length(message_id) NOT BETWEEN 1 AND 255 OR octet_length(handler) NOT BETWEEN 1 AND 255 THEN
        IF message_id IS NULL OR handler IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid inbox entry: message_id and handler must not be null';
        END IF;
        PERFORM {schema}.check_length('message_id', message_id, 255), {schema}.check_length('handler', handler, 255);
    END IF;
    INSERT INTO {schema}.inbox (message_id, handler, processed_at)
    VALUES (insert_if_absent.message_id, insert_if_absent.handler, coalesce(p_now, clock_timestamp()))
    ON CONFLICT (message_id, handler) DO NOTHING;
    RETURN FOUND::integer;
END $$;

-- Enters messages for a handler in this order, and returns those that are new, each once. As above, an open transaction that entered one
-- of the pairs holds us until it ends.
CREATE OR REPLACE FUNCTION {schema}.insert_all_if_absent(p_message_ids text[], p_handler text, p_now {schema}.injected_time)
RETURNS TABLE (message_id text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY INSERT INTO {schema}.inbox AS i (message_id, handler, processed_at)
    SELECT m.id, p_handler, coalesce(p_now, clock_timestamp()) FROM unnest(p_message_ids) WITH ORDINALITY AS m (id, at) ORDER BY m.at
    ON CONFLICT (message_id, handler) DO NOTHING
    RETURNING i.message_id::text;
END $$;

-- Forgets inbox entries older than the retention, a bounded number. Those another round is removing are skipped.
CREATE OR REPLACE FUNCTION {schema}.forget_inbox(p_retention_ms {schema}.inbox_age_ms, p_max integer, p_now {schema}.injected_time) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_count bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM {schema}.inbox i WHERE i.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.inbox x
        WHERE x.processed_at <= {schema}.before(coalesce(p_now, clock_timestamp()), p_retention_ms)
        ORDER BY x.processed_at LIMIT p_max FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
