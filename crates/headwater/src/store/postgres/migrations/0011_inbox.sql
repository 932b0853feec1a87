-- The inbox: which handler has handled which message, written in the same transaction as the handler's own effects and
-- the ack. And grants that say themselves to whom they go.

-- The functions of earlier versions are granted by name there. From here on a function is granted to the kinds its
-- comment names, so that a later version adds one without repeating the rest.
ALTER FUNCTION {schema}.grant_role(text, text) RENAME TO grant_role_by_name;

-- Grants a role what it needs. The owner may call it for roles of their own, and calls it again after an upgrade.
CREATE FUNCTION {schema}.grant_role(p_role text, p_kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_function text;
    v_table text;
BEGIN
    PERFORM {schema}.grant_role_by_name(p_role, p_kind);
    -- What consumers see of topics and groups; of a later version, and so maybe not there yet.
    FOREACH v_table IN ARRAY ARRAY['extent', 'mark', 'record', 'backfill', 'activity', 'ack_log'] LOOP
        IF p_kind = 'consumer' AND to_regclass(format('{schema}.%I', v_table)) IS NOT NULL THEN
            EXECUTE format('GRANT SELECT ON {schema}.%I TO %I', v_table, p_role);
        END IF;
    END LOOP;
    FOR v_function IN
        SELECT p.oid::regprocedure::text FROM pg_proc p
        WHERE p.pronamespace = '{schema}'::regnamespace AND p.prosecdef
          AND NOT has_function_privilege(p_role, p.oid, 'EXECUTE')
          AND starts_with(obj_description(p.oid, 'pg_proc'), 'granted to ')
          AND split_part(obj_description(p.oid, 'pg_proc'), ':', 1) ~ ('\m' || p_kind || '\M')
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, p_role);
    END LOOP;
END $$;

-- "message_id" is the publisher's identity of a message, so a second publish of the same id is known as well.
CREATE TABLE {schema}.inbox (
    handler    text COLLATE "C" NOT NULL,
    message_id uuid NOT NULL,
    handled_at timestamptz NOT NULL,
    PRIMARY KEY (handler, message_id)
);

CREATE INDEX inbox_handled ON {schema}.inbox (handled_at);

-- Enters a message; false if its handler has handled it. An open transaction that entered the same pair holds us until it
-- ends: only then is it known whether the effect happened.
CREATE FUNCTION {schema}.enter(p_handler text, p_message_id uuid, p_now {schema}.injected_time) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO {schema}.inbox (handler, message_id, handled_at)
    VALUES (p_handler, p_message_id, coalesce(p_now, clock_timestamp())) ON CONFLICT (handler, message_id) DO NOTHING;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION {schema}.enter IS 'granted to consumer: the inbox entry of a message';

-- Settles a lease inside the transaction that the handlers wrote in. Without p_firsts all of it is acked. Returns the
-- topic, or null if the lease is lost. p_mark was set when the transaction began and ends with it: a handler that
-- committed or rolled back on its own is found out before anything is acked outside of it.
CREATE FUNCTION {schema}.settle_inside(
    p_mark text, p_token bigint, p_subscription_id integer, p_owner text, p_firsts bigint[], p_lasts bigint[],
    p_outcomes text[], p_delays_ms bigint[], p_errors text[], p_keys text[], p_now {schema}.injected_time
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_topic integer;
    v_lane integer;
BEGIN
    IF current_setting('headwater.transaction', true) IS DISTINCT FROM p_mark THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid handler: it ended the transaction it was given; '
            'leave BEGIN, COMMIT and ROLLBACK to the consumer';
    END IF;
    IF p_firsts IS NOT NULL THEN
        RETURN {schema}.settle_parts(p_token, p_subscription_id, p_owner, p_firsts, p_lasts, p_outcomes, p_delays_ms,
                                     p_errors, p_keys, true, p_now);
    END IF;
    PERFORM {schema}.lock_leases(ARRAY[p_token]);
    WITH ended AS (
        DELETE FROM {schema}.outstanding o
        WHERE o.token = p_token AND o.subscription_id = p_subscription_id AND o.owner = p_owner
          AND o.due_at > coalesce(p_now, clock_timestamp())
        RETURNING o.subscription_id, o.lane, o.first_offset, o.last_offset, o.owner
    )
    SELECT max(s.topic_id), max(e.lane),
           bool_or(CASE WHEN t.ack_log THEN {schema}.log_ack(e.subscription_id, e.first_offset, e.last_offset, e.lane, e.owner, p_now) END)
    INTO v_topic, v_lane
    FROM ended e JOIN {schema}.subscription s ON s.subscription_id = e.subscription_id
    JOIN {schema}.topic t ON t.topic_id = s.topic_id;
    IF v_lane IS NOT NULL THEN
        -- The lane is free for another holder.
        PERFORM {schema}.wake(v_topic, true, false);
    END IF;
    RETURN v_topic;
END $$;
COMMENT ON FUNCTION {schema}.settle_inside IS 'granted to consumer: settles in the transaction of the handlers';

-- Forgets entries older than the retention, a bounded number. Those another round is removing are skipped.
CREATE FUNCTION {schema}.forget_inbox(p_retention_ms {schema}.inbox_age_ms, p_max integer, p_now {schema}.injected_time) RETURNS bigint
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
COMMENT ON FUNCTION {schema}.forget_inbox IS 'granted to consumer: upkeep of the inbox';

REVOKE ALL ON {schema}.inbox FROM PUBLIC;
SELECT {schema}.grant_roles();
