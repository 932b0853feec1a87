-- Roles: PUBLIC has nothing. {name}_producer may publish, {name}_consumer may consume, {name}_reader may look. The owner is
-- whoever migrates. Roles belong to the whole cluster and need CREATEROLE; where the migrating user may not create
-- them, a notice says so and the owner can grant the same to roles of their own.

REVOKE ALL ON SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC;

-- Grants a role what it needs. The owner may call it for roles of their own.
CREATE FUNCTION {schema}.grant_role(p_role text, p_kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_function text;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA {schema} TO %I', p_role);
    IF p_kind NOT IN ('producer', 'consumer', 'reader') THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format('invalid kind: %s is not producer, consumer or reader', p_kind);
    END IF;
    EXECUTE format('GRANT SELECT ON {schema}.migration, {schema}.topic TO %I', p_role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION {schema}.last_taken TO %I', p_role);
    IF p_kind = 'reader' THEN
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO %I', p_role);
        RETURN;
    END IF;
    IF p_kind = 'consumer' THEN
        EXECUTE format('GRANT SELECT ON {schema}.message, {schema}.subscription, {schema}.head, {schema}.cursor, '
                       '{schema}.outstanding, {schema}.gap, {schema}.schedule, {schema}.dead_letter, '
                       '{schema}.epoch TO %I', p_role);
        -- Acks delete, and lock first: that takes the right to change some column. Whoever may delete a range may do worse.
        EXECUTE format('GRANT DELETE, UPDATE (parked) ON {schema}.outstanding TO %I', p_role);
    END IF;
    FOR v_function IN
        SELECT p.oid::regprocedure::text FROM pg_proc p
        WHERE p.pronamespace = '{schema}'::regnamespace AND p.prosecdef
          -- Each grant writes the function's row anew, its text too.
          AND NOT has_function_privilege(p_role, p.oid, 'EXECUTE')
          AND (p_kind = 'producer' AND p.proname IN ('publish', 'publish_bytes', 'publish_batch', 'begin_epoch')
               OR p_kind = 'consumer' AND p.proname IN ('claim', 'settle_parts', 'wake', 'extend', 'heartbeat', 'depart', 'subscribe',
                                                           'raise_flag', 'maintain', 'advance', 'begin_epoch'))
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, p_role);
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION {schema}.grant_role FROM PUBLIC;

DO $$
DECLARE
    v_kind text;
BEGIN
    FOREACH v_kind IN ARRAY ARRAY['producer', 'consumer', 'reader'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}_' || v_kind) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', '{name}_' || v_kind);
            END IF;
            PERFORM {schema}.grant_role('{name}_' || v_kind, v_kind);
        EXCEPTION
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'role {name}_% was not created: creating roles is not allowed to this user', v_kind;
            WHEN duplicate_object OR unique_violation THEN
                -- Another namespace's migration made it a moment ago.
                PERFORM {schema}.grant_role('{name}_' || v_kind, v_kind);
        END;
    END LOOP;
END $$;
