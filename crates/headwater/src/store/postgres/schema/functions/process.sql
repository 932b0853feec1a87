-- Processes (sagas): their repository. A change and the entries of the log that describe it are one transaction.

-- Whether a process may become p_next; p_paused_in is the status that a pause interrupted. ProcessStatus::may_become of the library
-- is the same rule.
CREATE OR REPLACE FUNCTION {schema}.process_may_become(p_status text, p_paused_in text, p_next text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_status
        WHEN 'NEW' THEN p_next IN ('NEW', 'RUNNING', 'PAUSED')
        WHEN 'RUNNING' THEN p_next IN ('RUNNING', 'SUCCEEDED', 'FAILED', 'COMPENSATING', 'PAUSED')
        WHEN 'COMPENSATING' THEN p_next IN ('COMPENSATING', 'COMPENSATED', 'FAILED', 'PAUSED')
        WHEN 'PAUSED' THEN p_next IN ('PAUSED', CASE p_paused_in WHEN 'NEW' THEN 'RUNNING' ELSE p_paused_in END)
        ELSE false
    END
$$;

-- Inserts a process with its first event, and returns when; null, and nothing is inserted, if its id is known.
CREATE OR REPLACE FUNCTION {schema}.process_add(
    p_process_id uuid, p_process_type text, p_business_key text, p_current_step text, p_data text, p_retries bigint, p_event text,
    p_now {schema}.injected_time
) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    INSERT INTO {schema}.process (process_id, process_type, business_key, status, current_step, data, retries, created_at, updated_at)
    VALUES (p_process_id, p_process_type, p_business_key, 'NEW', p_current_step, p_data, p_retries, v_now, v_now)
    ON CONFLICT (process_id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO {schema}.process_event (process_id, sequence, logged_at, event_type, event, status, current_step, data, retries)
    VALUES (p_process_id, 1, v_now, 'ProcessStarted', p_event, 'NEW', p_current_step, p_data, p_retries);
    RETURN v_now;
END $$;

-- Changes a process that has this version, if its status allows it, and appends entries to its log: a JSON array of objects with
-- event_type, event, status, current_step, data and retries. No row, and nothing is changed, otherwise.
CREATE OR REPLACE FUNCTION {schema}.process_change(
    p_process_id uuid, p_version bigint, p_status text, p_current_step text, p_has_data boolean, p_data text, p_retries bigint,
    p_entries json, p_now {schema}.injected_time
) RETURNS TABLE (version bigint, created_at timestamptz, updated_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The clock is read once the row is locked: times rise with versions.
    UPDATE {schema}.process p
    SET status = p_status,
        paused_in = CASE WHEN p_status <> 'PAUSED' THEN NULL WHEN p.status = 'PAUSED' THEN p.paused_in ELSE p.status END,
        current_step = p_current_step,
        data = CASE WHEN p_has_data THEN p_data ELSE p.data END,
        retries = p_retries,
        version = p.version + json_array_length(p_entries),
        updated_at = coalesce(p_now, clock_timestamp()),
        ended_at = CASE WHEN p_status IN ('SUCCEEDED', 'FAILED', 'COMPENSATED') THEN coalesce(p_now, clock_timestamp()) END
    WHERE p.process_id = p_process_id AND p.version = p_version AND {schema}.process_may_become(p.status, p.paused_in, p_status)
    RETURNING p.version, p.created_at, p.updated_at INTO version, created_at, updated_at;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO {schema}.process_event (process_id, sequence, logged_at, event_type, event, status, current_step, data, retries)
    SELECT p_process_id, p_version + e.at, process_change.updated_at, e.entry ->> 'event_type', e.entry ->> 'event', e.entry ->> 'status',
           e.entry ->> 'current_step', e.entry ->> 'data', (e.entry ->> 'retries')::bigint
    FROM json_array_elements(p_entries) WITH ORDINALITY e (entry, at);
    RETURN NEXT;
END $$;

-- Changes several processes, each as process_change does, and returns how many: fewer than were given if one of them has another version
-- or a status that does not allow it. The caller has locked them, and rolls back then. A JSON array of objects with process_id, version,
-- status, current_step, has_data, data, retries and entries, at most one for each process.
CREATE OR REPLACE FUNCTION {schema}.process_change_all(p_changes json, p_now {schema}.injected_time) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_changed bigint;
BEGIN
    WITH given AS MATERIALIZED (
        SELECT g.process_id, g.version, g.status, g.current_step, g.has_data, g.data, g.retries, g.entries
        FROM json_to_recordset(p_changes) AS g (process_id uuid, version bigint, status text, current_step text, has_data boolean,
                                                data text, retries bigint, entries json)
    ), changed AS (
        UPDATE {schema}.process p
        SET status = g.status,
            paused_in = CASE WHEN g.status <> 'PAUSED' THEN NULL WHEN p.status = 'PAUSED' THEN p.paused_in ELSE p.status END,
            current_step = g.current_step,
            data = CASE WHEN g.has_data THEN g.data ELSE p.data END,
            retries = g.retries,
            version = p.version + json_array_length(g.entries),
            updated_at = coalesce(p_now, clock_timestamp()),
            ended_at = CASE WHEN g.status IN ('SUCCEEDED', 'FAILED', 'COMPENSATED') THEN coalesce(p_now, clock_timestamp()) END
        FROM given g
        WHERE p.process_id = g.process_id AND p.version = g.version AND {schema}.process_may_become(p.status, p.paused_in, g.status)
        RETURNING p.process_id, p.updated_at, g.version AS before, g.entries
    ), logged AS (
        INSERT INTO {schema}.process_event (process_id, sequence, logged_at, event_type, event, status, current_step, data, retries)
        SELECT c.process_id, c.before + e.at, c.updated_at, e.entry ->> 'event_type', e.entry ->> 'event', e.entry ->> 'status',
               e.entry ->> 'current_step', e.entry ->> 'data', (e.entry ->> 'retries')::bigint
        FROM changed c, json_array_elements(c.entries) WITH ORDINALITY e (entry, at)
    )
    SELECT count(*) INTO v_changed FROM changed;
    RETURN v_changed;
END $$;

-- A process and its events as a JSON array of [sequence, type, event], locked until the transaction ends. Two statements: the second
-- sees what was committed while the first waited for the lock.
CREATE OR REPLACE FUNCTION {schema}.process_load(p_process_id uuid, OUT process {schema}.process, OUT events text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT p.* INTO process FROM {schema}.process p WHERE p.process_id = p_process_id FOR NO KEY UPDATE;
    SELECT coalesce(json_agg(json_build_array(e.sequence, e.event_type, e.event)), '[]')::text INTO events
    FROM {schema}.process_event e WHERE e.process_id = p_process_id;
END $$;

-- The same for several processes, locked in the order of their ids, so that two transactions that lock some of the same never deadlock.
-- No row if their data together are larger than p_bytes_max: they are read one by one then. The size is read without the data.
CREATE OR REPLACE FUNCTION {schema}.process_load_all(p_process_ids uuid[], p_bytes_max bigint)
RETURNS TABLE (process {schema}.process, events text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    IF (SELECT sum(l.bytes) FROM (
            SELECT octet_length(p.data) AS bytes FROM {schema}.process p WHERE p.process_id = ANY (p_process_ids)
            ORDER BY p.process_id FOR NO KEY UPDATE) l) > p_bytes_max THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT p, (
        SELECT coalesce(json_agg(json_build_array(e.sequence, e.event_type, e.event)), '[]')::text
        FROM {schema}.process_event e WHERE e.process_id = p.process_id)
    FROM {schema}.process p WHERE p.process_id = ANY (p_process_ids);
END $$;

CREATE OR REPLACE FUNCTION {schema}.process_find_by_id(process_id uuid) RETURNS SETOF {schema}.process
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.* FROM {schema}.process p WHERE p.process_id = $1
$$;

CREATE OR REPLACE FUNCTION {schema}.process_find_by_status(status text, max bigint) RETURNS SETOF {schema}.process
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.* FROM {schema}.process p WHERE p.status = $1 ORDER BY p.created_at DESC, p.process_id DESC LIMIT $2
$$;

CREATE OR REPLACE FUNCTION {schema}.process_find_by_type_and_status(process_type text, status text, max bigint)
RETURNS SETOF {schema}.process
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.* FROM {schema}.process p WHERE p.process_type = $1 AND p.status = $2
    ORDER BY p.created_at DESC, p.process_id DESC LIMIT $3
$$;

-- The newest, if there are several.
CREATE OR REPLACE FUNCTION {schema}.process_find_by_business_key(process_type text, business_key text)
RETURNS SETOF {schema}.process
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.* FROM {schema}.process p WHERE p.process_type = $1 AND p.business_key = $2
    ORDER BY p.created_at DESC, p.process_id DESC LIMIT 1
$$;

-- Processes whose compensation failed: that is the last thing that happened to them, and a person has to decide.
CREATE OR REPLACE FUNCTION {schema}.process_find_parked(max bigint) RETURNS SETOF {schema}.process
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.* FROM {schema}.process p
    WHERE p.status = 'COMPENSATING' AND EXISTS (
        SELECT FROM {schema}.process_event e
        WHERE e.process_id = p.process_id AND e.sequence = p.version AND e.event_type = 'CompensationFailed')
    ORDER BY p.created_at DESC, p.process_id DESC LIMIT $1
$$;

-- Newest first; all without a limit.
CREATE OR REPLACE FUNCTION {schema}.process_log(process_id uuid, max bigint DEFAULT NULL) RETURNS SETOF {schema}.process_event
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT e.* FROM {schema}.process_event e WHERE e.process_id = $1 ORDER BY e.sequence DESC LIMIT $2
$$;

-- For plain SQL: inserts a process with ProcessStarted, and returns its version, 1.
CREATE OR REPLACE FUNCTION {schema}.process_insert(
    process_id uuid, process_type text, business_key text DEFAULT NULL, data text DEFAULT NULL, current_step text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF process_id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid process_id: must not be null';
    END IF;
    PERFORM {schema}.check_name('process_type', coalesce(process_type, ''));
    PERFORM {schema}.check_names('business_key', ARRAY[business_key]);
    PERFORM {schema}.check_names('current_step', ARRAY[current_step]);
    PERFORM {schema}.check_process_json('data', data);
    PERFORM {schema}.commit_durably();
    IF {schema}.process_add(process_id, process_type, business_key, current_step, data, 0,
            json_build_object('process_type', process_type, 'business_key', business_key, 'initial_data', data::json)::text, NULL) IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW008', MESSAGE = format('process %s exists already; nothing was written', process_id);
    END IF;
    RETURN 1;
END $$;

-- For plain SQL: updates a process that has this version, and returns the new version. What is left out is taken away, except
-- retries, which become 0.
CREATE OR REPLACE FUNCTION {schema}.process_update(
    process_id uuid, version bigint, status text, event_type text, event text, current_step text DEFAULT NULL,
    data text DEFAULT NULL, retries bigint DEFAULT 0
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p {schema}.process;
    v_version bigint;
BEGIN
    PERFORM {schema}.check_names('current_step', ARRAY[current_step]);
    PERFORM {schema}.check_process_json('data', data);
    PERFORM {schema}.check_name('event_type', coalesce(event_type, ''));
    PERFORM {schema}.check_process_json('event', coalesce(event, ''));
    IF event_type = 'ProcessStarted' OR retries IS NULL OR status IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003',
            MESSAGE = 'invalid update: it needs a status and retries, and ProcessStarted is the event of an insert';
    END IF;
    PERFORM {schema}.commit_durably();
    SELECT x.* INTO p FROM {schema}.process x WHERE x.process_id = process_update.process_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW010', MESSAGE = format('no such process: %s', process_id);
    ELSIF p.version IS DISTINCT FROM process_update.version THEN
        RAISE EXCEPTION USING ERRCODE = 'HW008', MESSAGE = format(
            'process %s was changed meanwhile: version %s is stale, %s is stored; nothing was written: read it again',
            process_id, process_update.version, p.version);
    ELSIF NOT {schema}.process_may_become(p.status, p.paused_in, process_update.status) THEN
        RAISE EXCEPTION USING ERRCODE = 'HW007', MESSAGE = format(
            'process %s: %s does not become %s; nothing was written', process_id, p.status, process_update.status);
    END IF;
    SELECT c.version INTO STRICT v_version FROM {schema}.process_change(
        process_update.process_id, p.version, process_update.status, process_update.current_step,
        process_update.data IS DISTINCT FROM p.data, process_update.data, process_update.retries,
        json_build_array(json_build_object(
            'event_type', process_update.event_type, 'event', process_update.event,
            'status', CASE WHEN process_update.status <> p.status THEN process_update.status END,
            'current_step', CASE WHEN process_update.current_step IS DISTINCT FROM p.current_step
                THEN coalesce(process_update.current_step, '') END,
            'data', CASE WHEN process_update.data IS DISTINCT FROM p.data THEN coalesce(process_update.data, 'null') END,
            'retries', CASE WHEN process_update.retries <> p.retries THEN process_update.retries END)),
        NULL) c;
    RETURN v_version;
END $$;

-- Raises InvalidInput (HW003) unless a text is null or a JSON object.
CREATE OR REPLACE FUNCTION {schema}.check_process_json(p_field text, p_text text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_text IS NULL OR json_typeof(p_text::json) = 'object' THEN
        RETURN;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format('invalid %s: must be a JSON object', p_field);
EXCEPTION
    WHEN invalid_text_representation THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format('invalid %s: must be a JSON object', p_field);
END $$;

-- What plain SQL writes survives a crash, whatever the session has set, as a publish does.
CREATE OR REPLACE FUNCTION {schema}.commit_durably() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- Removes a time-out of a process that is not due yet; false if there is none. One that is being delivered at this moment is not
-- waited for: it is ignored when it comes.
CREATE OR REPLACE FUNCTION {schema}.process_cancel_timer(p_topic text, p_message_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM {schema}.schedule s WHERE s.schedule_id = ANY (ARRAY(
        SELECT x.schedule_id FROM {schema}.schedule x JOIN {schema}.topic t ON t.topic_id = x.topic_id
        WHERE t.name = p_topic AND x.message_id = p_message_id AND x.message_type = 'headwater.process.timer'
        FOR UPDATE OF x SKIP LOCKED));
    RETURN FOUND;
END $$;

-- The same for several.
CREATE OR REPLACE FUNCTION {schema}.process_cancel_timers(p_topic text, p_message_ids uuid[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_topic integer;
    v_count bigint;
BEGIN
    SELECT t.topic_id INTO v_topic FROM {schema}.topic t WHERE t.name = p_topic;
    DELETE FROM {schema}.schedule s WHERE s.schedule_id = ANY (ARRAY(
        SELECT x.schedule_id FROM {schema}.schedule x
        WHERE x.topic_id = v_topic AND x.message_id = ANY (p_message_ids) AND x.message_type = 'headwater.process.timer'
        FOR UPDATE OF x SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Publishes a message to the manager of a process, for operators, who may not publish anything else; null if there is no such process.
CREATE OR REPLACE FUNCTION {schema}.process_signal(
    p_process_id uuid, p_message_id uuid, p_payload bytea, p_now {schema}.injected_time
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_type text;
    v_topic integer;
BEGIN
    SELECT p.process_type INTO v_type FROM {schema}.process p WHERE p.process_id = p_process_id;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT b.topic_id INTO v_topic FROM {schema}.publish_batch(
        'process.' || v_type, ARRAY[p_message_id], ARRAY[p_payload], ARRAY[p_process_id::text],
        ARRAY['headwater.process.control'], ARRAY['application/json'], NULL, NULL, NULL, NULL, p_now, false) b;
    RETURN v_topic;
END $$;

-- Removes processes that ended longer ago, with their logs: a bounded number, oldest first. Those another round is removing are skipped.
CREATE OR REPLACE FUNCTION {schema}.process_forget(p_retention_ms {schema}.process_age_ms, p_max integer, p_now {schema}.injected_time)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_ids uuid[] := ARRAY(
        SELECT p.process_id FROM {schema}.process p
        WHERE p.ended_at <= {schema}.before(coalesce(p_now, clock_timestamp()), p_retention_ms)
        ORDER BY p.ended_at LIMIT p_max FOR UPDATE SKIP LOCKED);
BEGIN
    DELETE FROM {schema}.process_event e WHERE e.process_id = ANY (v_ids);
    DELETE FROM {schema}.process p WHERE p.process_id = ANY (v_ids);
    RETURN cardinality(v_ids);
END $$;
