-- Rights. PUBLIC has none. {name}_producer may publish, {name}_consumer may consume, {name}_reader may read, {name}_operator may read and
-- operate: pause, seek, alter, redrive, delete. The owner is the role that migrates. Roles belong to the whole cluster and creating them needs
-- CREATEROLE; if the migrating role may not create them, a notice reports it, and the owner can grant the same rights to other roles.

-- Revokes all rights of PUBLIC in the schema. PostgreSQL grants every new function to PUBLIC, and a dump restored without a role
-- loses the revocation together with the grant that fails. Only if there is something to revoke: a revocation writes a new version
-- of the function's row with its text.
CREATE OR REPLACE FUNCTION {schema}.revoke_public() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_object text;
BEGIN
    FOR v_object IN
        SELECT 'FUNCTION ' || p.oid::regprocedure FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        WHERE p.pronamespace = '{schema}'::regnamespace AND a.grantee = 0
        UNION
        SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || c.oid::regclass FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.relnamespace = '{schema}'::regnamespace AND a.grantee = 0
        UNION
        SELECT 'SCHEMA {schema}' FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.oid = '{schema}'::regnamespace AND a.grantee = 0
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM PUBLIC', v_object);
    END LOOP;
END $$;

-- Grants a role the rights of its kind. The owner may call it for other roles, and must repeat the call after an upgrade.
CREATE OR REPLACE FUNCTION {schema}.grant_role(p_role text, p_kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_functions text[];
    v_function text;
BEGIN
    -- First: until now only the missing right to use a restored schema kept its functions closed to PUBLIC.
    PERFORM {schema}.revoke_public();
    CASE p_kind
        WHEN 'producer' THEN
            v_functions := ARRAY['begin_epoch', 'cancel_scheduled', 'cron_describe', 'cron_fire', 'cron_last', 'last_taken', 'move_scheduled', 'publish',
                                 'publish_batch', 'publish_bytes', 'read_clock',
                                 -- Outbox and dead letters, also for programs in plain SQL.
                                 'insert_returning_id', 'park',
                                 'process_add', 'process_find_by_business_key', 'process_find_by_id', 'process_insert'];
        WHEN 'consumer' THEN
            v_functions := ARRAY['advance', 'advanced_head', 'as_text', 'backfills', 'begin_epoch', 'claim', 'claimable', 'clean', 'clean_subscription',
                                 'depart', 'detect_dead', 'elapse', 'elect', 'empty_deleted_topic', 'end_silent', 'extend_leases', 'fail_backfill',
                                 'forget_inbox', 'forget_old', 'forget_published', 'heartbeat', 'job_ran', 'jobs', 'keep_partitions', 'last_older', 'last_taken',
                                 'last_taken_of', 'maintain',
                                 -- In the views of operator_views.sql.
                                 'counts', 'watermark_of',
                                 'messages', 'move_clock', 'pause', 'progress_list', 'purge', 'raise_flag', 'read_clock', 'records', 'redrive', 'resign',
                                 'settle_all', 'settle_inside', 'settle_parts', 'start_backfill', 'step_backfill', 'stored_among', 'subscribe', 'take_backfill',
                                 'take_over', 'track', 'turn_backfill', 'wake', 'watch', 'went_past', 'withdraw',
                                 'process_add', 'process_cancel_timer', 'process_cancel_timers', 'process_change', 'process_change_all', 'process_find_by_business_key',
                                 'process_find_by_id', 'process_find_by_status', 'process_find_by_type_and_status', 'process_find_parked', 'process_forget',
                                 'process_insert', 'process_load', 'process_load_all', 'process_log', 'process_signal', 'process_update',
                                 -- For programs in plain SQL.
                                 'ack', 'bury', 'create_group', 'extend', 'listen', 'read', 'read_bytes', 'release', 'retry',
                                 -- Outbox, inbox and dead letters: for relays, for bridges, for handlers, and for programs in plain SQL.
                                 'advance_bridge', 'claim_if_new', 'fail_outbox', 'insert_all_if_absent', 'insert_if_absent', 'insert_returning_id', 'mark_failed', 'mark_published', 'park',
                                 'recover_stuck', 'redrive_parked', 'reschedule', 'sweep_batch', 'sweep_outbox'];
        WHEN 'reader' THEN
            v_functions := ARRAY['as_text', 'backfills', 'counts', 'jobs', 'last_older', 'last_taken', 'messages', 'progress_list', 'records', 'stored_among', 'topic_contents',
                                 'watermark_of', 'went_past', 'process_find_by_business_key', 'process_find_by_id', 'process_find_by_status',
                                 'process_find_by_type_and_status', 'process_find_parked', 'process_log'];
        WHEN 'operator' THEN
            v_functions := ARRAY['act_on_message', 'add_relay', 'advance', 'alter_topic', 'as_text', 'backfills', 'begin_epoch', 'cancel_scheduled', 'create_group', 'create_topic',
                                 'delete_dead_letters', 'delete_topic', 'empty_cancelled', 'empty_deleted_topic', 'force_complete', 'jobs', 'last_older', 'last_taken', 'messages',
                                 'move_scheduled', 'note_act', 'park', 'pause', 'progress_list', 'purge', 'purge_topic', 'read_clock', 'records', 'recover_stuck',
                                 'redrive', 'redrive_parked', 'release_lease', 'remove_purged', 'remove_relay', 'remove_subscription', 'replace_dead_letter', 'requeue',
                                 'resurrect', 'seek', 'set_policy',
                                 -- Tokens of servers.
                                 'any_token', 'create_token', 'end_session', 'find_token', 'list_tokens', 'revoke_token', 'rotate_token', 'start_session',
                                 -- In the views of operator_views.sql.
                                 'counts', 'watermark_of',
                                 'set_state', 'start_backfill', 'store_topic', 'stored_among', 'subscribe', 'topic_contents', 'turn_backfill', 'went_past',
                                 'process_change', 'process_find_by_business_key', 'process_find_by_id', 'process_find_by_status',
                                 'process_find_by_type_and_status', 'process_find_parked', 'process_load', 'process_log', 'process_signal', 'process_update'];
        ELSE
            RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
                'invalid kind: %s is not producer, consumer, operator or reader', p_kind);
    END CASE;
    EXECUTE format('GRANT USAGE ON SCHEMA {schema} TO %I', p_role);
    EXECUTE format('GRANT SELECT ON {schema}.schema_version, {schema}.topic TO %I', p_role);
    IF p_kind IN ('reader', 'operator') THEN
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO %I', p_role);
        -- Hashes of secrets: read through functions alone.
        EXECUTE format('REVOKE ALL ON {schema}.token FROM %I', p_role);
    ELSIF p_kind = 'consumer' THEN
        EXECUTE format('GRANT SELECT ON {schema}.message, {schema}.subscription, {schema}.head, {schema}.cursor, {schema}.outstanding, '
                       '{schema}.gap, {schema}.schedule, {schema}.dead_letter, {schema}.epoch, {schema}.epoch_history, {schema}.topic_range, {schema}.watermark_history, '
                       '{schema}.completion_record, {schema}.backfill, {schema}.activity_seen, {schema}.ack_log, {schema}.outbox_entry, '
                       '{schema}.inbox, {schema}.bridge_position, {schema}.relay TO %I', p_role);
        -- For people: schema/operator_views.sql.
        EXECUTE format('GRANT SELECT ON {schema}.topics, {schema}.messages, {schema}.subscriptions, {schema}.outstanding_ranges, '
                       '{schema}.dead_letters, {schema}.scheduled, {schema}.near_timeout, {schema}.stuck, {schema}.orphaned_groups, '
                       '{schema}.backfill_progress, {schema}.cleanup, {schema}.message_status, {schema}.outbox, {schema}.inbox_entries, '
                       '{schema}.processes, {schema}.process_events TO %I', p_role);
    END IF;
    FOR v_function IN
        SELECT p.oid::regprocedure::text FROM pg_proc p
        WHERE p.pronamespace = '{schema}'::regnamespace AND p.proname = ANY (v_functions)
          -- Each grant writes a new version of the function's row with its text.
          AND NOT has_function_privilege(p_role, p.oid, 'EXECUTE')
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, p_role);
    END LOOP;
END $$;

-- Creates the namespace's own roles if the user may, and grants them this version's functions and tables. A role created by
-- Headwater is marked by a comment, which databases of one cluster share like the role. A role of the name without the mark is
-- refused: it belongs to another program, which would get these rights.
CREATE OR REPLACE FUNCTION {schema}.grant_roles() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_mark text := 'headwater: role of namespace {name}';
    v_kind text;
    v_role text;
BEGIN
    FOREACH v_kind IN ARRAY ARRAY['producer', 'consumer', 'reader', 'operator'] LOOP
        v_role := '{name}_' || v_kind;
        IF to_regrole(quote_ident(v_role)) IS NULL THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
                EXECUTE format('COMMENT ON ROLE %I IS %L', v_role, v_mark);
            EXCEPTION
                WHEN insufficient_privilege THEN
                    RAISE NOTICE 'role % was not created: creating roles is not allowed to this user', v_role;
                WHEN duplicate_object OR unique_violation THEN
                    -- The migration of another database has just created it.
                    NULL;
            END;
        END IF;
        CONTINUE WHEN to_regrole(quote_ident(v_role)) IS NULL;
        IF shobj_description(to_regrole(quote_ident(v_role)), 'pg_authid') IS DISTINCT FROM v_mark THEN
            RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
                'invalid role: %s exists and was not created for namespace {name}, which would give it the rights of a %s; '
                'choose another namespace, rename the role, or, if it is meant to have them, run COMMENT ON ROLE %I IS %L',
                v_role, v_kind, v_role, v_mark);
        END IF;
        PERFORM {schema}.grant_role(v_role, v_kind);
    END LOOP;
END $$;
