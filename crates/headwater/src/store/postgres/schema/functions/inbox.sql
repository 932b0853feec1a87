-- Inbox entries: see the table.

-- Inserts an entry; false if the handler has handled the message. An open transaction that inserted the same entry blocks this
-- statement until it ends: only then is it known whether the effect happened.
CREATE OR REPLACE FUNCTION {schema}.enter(p_handler text, p_message_id uuid, p_now {schema}.injected_time) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO {schema}.inbox (handler, message_id, handled_at)
    VALUES (p_handler, p_message_id, coalesce(p_now, clock_timestamp())) ON CONFLICT (handler, message_id) DO NOTHING;
    RETURN FOUND;
END $$;

-- Removes entries older than the retention, at most p_max. Entries that another session is removing are skipped.
CREATE OR REPLACE FUNCTION {schema}.forget_inbox(p_retention_ms {schema}.inbox_age_ms, p_max integer, p_now {schema}.injected_time) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_count bigint;
BEGIN
    DELETE FROM {schema}.inbox i WHERE i.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.inbox x
        WHERE x.handled_at <= coalesce(p_now, clock_timestamp()) - make_interval(secs => p_retention_ms / 1000.0)
        ORDER BY x.handled_at LIMIT p_max FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
