-- Comments in the catalogue, which psql shows with \df+ and \dv+: a line for what programs and people use, and a mark for the rest.
-- docs/sql.md describes the same functions and views.

-- By name, whatever the parameters are. Every other object is marked: it may change in every version.
CREATE OR REPLACE FUNCTION {schema}.write_comments() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_internal text := 'internal: used by Headwater itself, and changed without notice';
    v_public jsonb := jsonb_build_object(
        'publish', 'Publishes a JSON message in the transaction of the caller. Returns its offset; null while it is scheduled.',
        'publish_bytes', 'Publishes a message of any bytes in the transaction of the caller. Returns its offset; null while it is scheduled.',
        'create_topic', 'Creates a topic with the default settings of its kind: queue or pub_sub. False if it exists.',
        'create_group', 'Creates a group of a topic, at beginning, now, an offset or a time. False if it exists.',
        'read', 'Reads up to qty messages of a group, with JSON payloads, under a lease of lease_s seconds. Commit it before handling them.',
        'read_bytes', 'Reads up to qty messages of a group, with payloads as bytes, under a lease of lease_s seconds. Commit it before handling them.',
        'ack', 'Marks messages of a lease as done, or all that it holds. In the transaction of the effects: exactly once.',
        'retry', 'Hands a message of a lease out again after delay_s, or the back-off of the group; at its last attempt it is buried.',
        'bury', 'Makes a dead letter of a message of a lease.',
        'release', 'Gives back what a lease holds, at once and without counting an attempt.',
        'extend', 'Sets the deadline of a lease to lease_s seconds from now.',
        'listen', 'Listens for messages of a topic. After its commit read again, then wait for a notification for at most wait_s seconds.',
        'insert_returning_id', 'Inserts an outbox entry in the transaction of the caller. Returns its id.',
        'claim_if_new', 'Claims an outbox entry that is NEW; no row otherwise.',
        'sweep_batch', 'Claims up to max outbox entries that are due, oldest first. Concurrent sweeps share none.',
        'mark_published', 'Marks outbox entries of a claimer as published. The outcome of each: published, lost or unknown.',
        'mark_failed', 'Marks outbox entries of a claimer as failed. The outcome of each: failed, parked, lost or unknown.',
        'reschedule', 'Gives outbox entries of a claimer back, due again after a back-off. The outcome of each: rescheduled, lost or unknown.',
        'recover_stuck', 'Makes outbox entries NEW again that were claimed at least so long ago. Returns how many.',
        'insert_if_absent', 'Enters a message into the inbox of a handler: 1 if it is new, 0 if the handler has processed it.',
        'park', 'Parks a command as a dead letter. Returns the id of the dead letter.',
        'process_insert', 'Inserts a process (saga) with its first event, in the transaction of the caller. Returns its version.',
        'process_update', 'Updates a process that has this version, with the event that changed it. Returns the new version.',
        'process_find_by_id', 'A process.',
        'process_find_by_status', 'The newest processes of a status.',
        'process_find_by_type_and_status', 'The newest processes of a type and status.',
        'process_find_by_business_key', 'The newest process of a type and business key.',
        'process_log', 'The log of a process, newest first: the newest entries, or all.',
        'grant_role', 'Grants a role the rights of a producer, consumer, operator or reader.',
        'topics', 'Topics with their settings and the range of their offsets.',
        'messages', 'Stored messages, with payloads as text.',
        'subscriptions', 'Groups with their state, progress and lag.',
        'outstanding_ranges', 'Offsets that were handed out and are not done: leased, or waiting.',
        'dead_letters', 'Messages that a group gave up on, outbox entries without an attempt left, and parked commands.',
        'outbox', 'Entries for external brokers, with their status.',
        'inbox_entries', 'Which handler has processed which message.',
        'scheduled', 'Messages that are delivered later.',
        'near_timeout', 'Active groups without a heartbeat for four fifths of their timeout.',
        'stuck', 'Groups whose oldest message that is not done is over an hour old.',
        'orphaned_groups', 'Groups that no process serves.',
        'backfill_progress', 'Backfills with their progress, rate and remaining time.',
        'cleanup', 'How much cleanup has left to remove, and its last run.',
        'message_status', 'Reference counting: which groups have done each message.',
        'processes', 'Processes with their status, step and data.',
        'process_events', 'The logs of processes: what happened, and what changed with it.');
    v_object record;
BEGIN
    FOR v_object IN
        SELECT o.name, o.comment FROM (
            -- The function "messages", beside the view of that name, is not for callers.
            SELECT 'FUNCTION ' || p.oid::regprocedure AS name, obj_description(p.oid, 'pg_proc') AS present,
                   coalesce(v_public ->> nullif(p.proname::text, 'messages'), v_internal) AS comment
            FROM pg_proc p WHERE p.pronamespace = '{schema}'::regnamespace
            UNION ALL
            SELECT CASE c.relkind WHEN 'v' THEN 'VIEW ' ELSE 'TABLE ' END || c.oid::regclass, obj_description(c.oid, 'pg_class'),
                   coalesce(CASE WHEN c.relkind = 'v' THEN v_public ->> c.relname::text END, v_internal)
            FROM pg_class c
            WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('v', 'r', 'p') AND NOT c.relispartition) o
        WHERE o.present IS DISTINCT FROM o.comment
    LOOP
        EXECUTE format('COMMENT ON %s IS %L', v_object.name, v_object.comment);
    END LOOP;
END $$;

SELECT {schema}.write_comments();
