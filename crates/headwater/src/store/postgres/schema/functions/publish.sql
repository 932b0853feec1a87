-- Publishing, at once or when a scheduled message is due. The only way into the log: no role is granted INSERT on it.

-- Raises InvalidInput (HW003) if a name of a column breaks the rule. One pass; nothing to do for a column of nulls.
CREATE OR REPLACE FUNCTION {schema}.check_names(p_field text, p_values text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.check_name(p_field, v) FROM unnest(p_values) v
    WHERE v = '' OR octet_length(v) > 255 OR v ~ '[\x01-\x1f\x7f-\x9f]';
END $$;

-- Raises InvalidInput (HW003) unless headers are objects of strings with proper names, within the limits of the library (limits.rs).
CREATE OR REPLACE FUNCTION {schema}.check_headers(p_headers jsonb[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
    v_name text;
BEGIN
    IF EXISTS (SELECT FROM unnest(p_headers) h WHERE jsonb_typeof(h) <> 'object') THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid headers: must be a JSON object of strings';
    END IF;
    SELECT max((SELECT count(*) FROM jsonb_object_keys(h))) INTO v_count FROM unnest(p_headers) h;
    IF v_count > 128 THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format('invalid headers: %s headers, at most 128 are allowed', v_count);
    END IF;
    PERFORM {schema}.check_name('header name', e.key) FROM unnest(p_headers) h, jsonb_object_keys(h) AS e (key)
    WHERE e.key = '' OR octet_length(e.key) > 255 OR e.key ~ '[\x01-\x1f\x7f-\x9f]';
    IF EXISTS (SELECT FROM unnest(p_headers) h, jsonb_each(h) e WHERE jsonb_typeof(e.value) <> 'string') THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid headers: every value must be a string';
    END IF;
    SELECT e.key INTO v_name FROM unnest(p_headers) h, jsonb_each_text(h) e WHERE octet_length(e.value) > 16384 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format('invalid header value: header %s must be at most 16384 bytes', v_name);
    END IF;
END $$;

-- Publishes a batch: all or nothing. A null array means a column of nulls. A delay counts from now, and precedes a time of delivery. offsets[i] is null while message i is scheduled;
-- duplicate_of[i] is the id of the first message with its dedup key.
CREATE OR REPLACE FUNCTION {schema}.publish_batch(
    p_topic text, p_message_ids uuid[], p_payloads bytea[], p_keys text[], p_types text[], p_content_types text[],
    p_headers jsonb[], p_correlation_ids text[], p_dedup_keys text[], p_deliver_ats timestamptz[], p_now {schema}.injected_time,
    p_own boolean, p_expected timestamptz DEFAULT NULL, p_delays_ms bigint[] DEFAULT NULL, OUT topic_id integer, OUT offsets bigint[], OUT duplicate_of uuid[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_sequence regclass;
    v_bytes_max integer;
    v_bytes integer;
    v_blocks boolean;
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    IF v_now NOT BETWEEN p_expected - interval '5 seconds' AND p_expected + interval '5 seconds' THEN
        PERFORM {schema}.refuse_step(v_now, p_expected);
    END IF;
    -- The transaction gets its xid before it takes an offset: "advance" relies on it to find the transactions that may own
    -- a missing offset.
    PERFORM pg_current_xact_id();
    IF NOT p_own THEN
        -- A session of a store has already begun the epoch; a session of another program may be the first on a promoted server.
        PERFORM {schema}.pass_lost_offsets();
    END IF;
    SELECT t.topic_id, t.offsets, t.payload_bytes_max, t.block_writes INTO topic_id, v_sequence, v_bytes_max, v_blocks
    FROM {schema}.topic t WHERE t.name = p_topic;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = format('no such topic: %s', p_topic);
    END IF;
    -- Nested, so that topics without the setting do not run the query.
    IF v_blocks THEN
        IF NOT EXISTS (SELECT FROM {schema}.subscription s
                       WHERE s.topic_id = publish_batch.topic_id AND s.state IN ('active', 'paused')) THEN
            RAISE EXCEPTION USING ERRCODE = 'HW006', MESSAGE = format('no subscriptions: %s', p_topic);
        END IF;
    END IF;
    IF strpos(coalesce(current_setting('headwater.offsets_{name}', true), ''), ' ' || topic_id || ' ') = 0 THEN
        PERFORM {schema}.check_offsets(topic_id);
    END IF;
    SELECT max(octet_length(p)) INTO v_bytes FROM unnest(p_payloads) p;
    IF v_bytes > v_bytes_max THEN
        RAISE EXCEPTION USING ERRCODE = 'HW002', DETAIL = v_bytes || ' ' || v_bytes_max,
            MESSAGE = format(
                'payload too large: %s bytes, topic %s allows %s; raise its payload_bytes_max or store the payload elsewhere',
                v_bytes, p_topic, v_bytes_max);
    END IF;
    IF p_keys IS NOT NULL THEN
        PERFORM {schema}.check_names('key', p_keys);
    END IF;
    IF p_types IS NOT NULL THEN
        PERFORM {schema}.check_names('type', p_types);
    END IF;
    IF p_content_types IS NOT NULL THEN
        PERFORM {schema}.check_names('content_type', p_content_types);
    END IF;
    IF p_correlation_ids IS NOT NULL THEN
        PERFORM {schema}.check_names('correlation_id', p_correlation_ids);
    END IF;
    IF p_headers IS NOT NULL THEN
        PERFORM {schema}.check_headers(p_headers);
    END IF;
    -- Published messages must survive a crash, and a failover to a synchronous standby, whatever the database, the role or the
    -- caller's session has set: a value weaker than on is raised until the transaction ends, remote_apply stays.
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF p_delays_ms IS NOT NULL THEN
        p_deliver_ats := ARRAY(
            SELECT coalesce(v_now + make_interval(secs => d.ms / 1000.0), p_deliver_ats[d.i])
            FROM unnest(p_delays_ms) WITH ORDINALITY AS d (ms, i) ORDER BY d.i);
    END IF;
    IF p_dedup_keys IS NULL AND p_deliver_ats IS NULL THEN
        offsets := {schema}.append(topic_id, v_sequence, v_now, p_message_ids, p_keys, p_types, p_payloads, p_content_types, p_headers,
                                   p_correlation_ids);
    ELSE
        SELECT c.offsets, c.duplicate_of INTO offsets, duplicate_of
        FROM {schema}.publish_each(topic_id, v_sequence, p_message_ids, p_payloads, p_keys, p_types, p_content_types,
                                   p_headers, p_correlation_ids, p_dedup_keys, p_deliver_ats, v_now) c;
    END IF;
    PERFORM {schema}.wake(topic_id, p_own, array_position(offsets, NULL) IS NOT NULL);
END $$;

-- The part of publish_batch that handles messages one by one: dedup keys and delivery times.
CREATE OR REPLACE FUNCTION {schema}.publish_each(
    p_topic_id integer, p_sequence regclass, p_message_ids uuid[], p_payloads bytea[], p_keys text[], p_types text[],
    p_content_types text[], p_headers jsonb[], p_correlation_ids text[], p_dedup_keys text[],
    p_deliver_ats timestamptz[], p_now timestamptz, OUT offsets bigint[], OUT duplicate_of uuid[]
)
LANGUAGE plpgsql AS $$
DECLARE
    v_count integer := cardinality(p_message_ids);
    v_window interval;
    v_longest timestamptz;
    v_first uuid;
    v_offset bigint;
    i integer;
BEGIN
    PERFORM {schema}.check_names('dedup_key', p_dedup_keys);
    IF (SELECT max(d) FROM unnest(p_deliver_ats) d) > p_now + interval '366 days' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid deliver_at: more than 366 days from now';
    END IF;
    offsets := array_fill(NULL::bigint, ARRAY[v_count]);
    duplicate_of := array_fill(NULL::uuid, ARRAY[v_count]);
    -- Locked until the transaction ends: a topic is deleted before this, and then not found here, or after it. A message that
    -- gets an offset at once needs no such lock: see functions/topic_delete.sql.
    SELECT make_interval(secs => t.dedup_window_ms / 1000.0) INTO v_window FROM {schema}.topic t WHERE t.topic_id = p_topic_id
    FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = format('no such topic: number %s was just deleted', p_topic_id);
    END IF;
    IF p_dedup_keys IS NULL AND NOT EXISTS (SELECT FROM unnest(p_deliver_ats) d WHERE d IS NULL OR d <= p_now) THEN
        INSERT INTO {schema}.schedule (topic_id, deliver_at, message_id, key, message_type, payload, content_type, headers, correlation_id)
        SELECT p_topic_id, u.d, u.m, u.k, u.t, u.p, u.c, u.h, u.r
        FROM unnest(p_deliver_ats, p_message_ids, p_keys, p_types, p_payloads, p_content_types, p_headers, p_correlation_ids)
            WITH ORDINALITY AS u (d, m, k, t, p, c, h, r, i)
        ORDER BY u.i;
        RETURN;
    END IF;
    -- A window that ends later was stored while the clock was ahead, and is over. Until deadlines are moved after a step back,
    -- the time before the step counts.
    SELECT greatest(p_now, c.latest_at) + v_window + interval '10 seconds' INTO v_longest FROM {schema}.clock c;
    -- Keys are inserted in sorted order, so that two batches with the same keys wait for each other and never deadlock. A
    -- concurrent publisher of the same key blocks this statement until it ends: only then is it known whether it was first.
    FOR i IN SELECT u.i FROM unnest(p_dedup_keys) WITH ORDINALITY AS u (k, i) WHERE u.k IS NOT NULL ORDER BY u.k COLLATE "C", u.i LOOP
        INSERT INTO {schema}.dedup AS d (topic_id, dedup_key, message_id, message_offset, expires_at)
        VALUES (p_topic_id, p_dedup_keys[i], p_message_ids[i], NULL, p_now + v_window)
        ON CONFLICT (topic_id, dedup_key) DO UPDATE
            SET message_id = excluded.message_id, message_offset = NULL, expires_at = excluded.expires_at
            WHERE d.expires_at <= p_now OR d.expires_at > v_longest
        RETURNING d.message_id INTO v_first;
        IF v_first IS NULL THEN
            SELECT d.message_id INTO STRICT v_first FROM {schema}.dedup d
            WHERE d.topic_id = p_topic_id AND d.dedup_key = p_dedup_keys[i];
            duplicate_of[i] := v_first;
        END IF;
        v_first := NULL;
    END LOOP;
    FOR i IN 1..v_count LOOP
        CONTINUE WHEN duplicate_of[i] IS NOT NULL;
        IF p_deliver_ats[i] > p_now THEN
            INSERT INTO {schema}.schedule (topic_id, deliver_at, message_id, key, message_type, payload, content_type,
                                           headers, correlation_id, dedup_key)
            VALUES (p_topic_id, p_deliver_ats[i], p_message_ids[i], p_keys[i], p_types[i], p_payloads[i],
                    p_content_types[i], p_headers[i], p_correlation_ids[i], p_dedup_keys[i]);
        ELSE
            v_offset := {schema}.append_one(p_topic_id, p_sequence, p_now, p_message_ids[i], p_keys[i], p_types[i], p_payloads[i],
                                            p_content_types[i], p_headers[i], p_correlation_ids[i]);
            offsets[i] := v_offset;
            IF p_dedup_keys[i] IS NOT NULL THEN
                UPDATE {schema}.dedup d SET message_offset = v_offset
                WHERE d.topic_id = p_topic_id AND d.dedup_key = p_dedup_keys[i];
            END IF;
        END IF;
    END LOOP;
    FOR i IN 1..v_count LOOP
        CONTINUE WHEN duplicate_of[i] IS NULL;
        SELECT d.message_offset INTO v_offset FROM {schema}.dedup d
        WHERE d.topic_id = p_topic_id AND d.dedup_key = p_dedup_keys[i];
        offsets[i] := v_offset;
    END LOOP;
END $$;

-- A UUIDv7 for messages that plain SQL publishes without an id: 48 bits of time in milliseconds, the rest random.
CREATE OR REPLACE FUNCTION {schema}.new_message_id() RETURNS uuid
LANGUAGE sql VOLATILE AS $$
    SELECT encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                FROM 1 FOR 6),
            52, 1), 53, 1), 'hex')::uuid
$$;

-- Publishes bytes in the caller's own transaction. Returns the offset; null while the message is scheduled.
CREATE OR REPLACE FUNCTION {schema}.publish_bytes(
    topic text, payload bytea, key text DEFAULT NULL, headers jsonb DEFAULT NULL, type text DEFAULT NULL,
    content_type text DEFAULT NULL, message_id uuid DEFAULT NULL, correlation_id text DEFAULT NULL,
    dedup_key text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_offsets bigint[];
BEGIN
    IF topic IS NULL OR payload IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid message: topic and payload must not be null';
    END IF;
    PERFORM {schema}.check_name('topic', topic);
    SELECT b.offsets INTO v_offsets
    FROM {schema}.publish_batch(
        topic, ARRAY[coalesce(message_id, {schema}.new_message_id())], ARRAY[payload], ARRAY[key], ARRAY[type],
        ARRAY[content_type], CASE WHEN headers IS NOT NULL THEN ARRAY[headers] END, ARRAY[correlation_id],
        CASE WHEN dedup_key IS NOT NULL THEN ARRAY[dedup_key] END,
        CASE WHEN deliver_at IS NOT NULL THEN ARRAY[deliver_at] END, NULL, false) b;
    RETURN v_offsets[1];
END $$;

-- Publishes JSON in the caller's own transaction: SELECT {schema}.publish('orders', '{"n":1}', key => 'o-1').
CREATE OR REPLACE FUNCTION {schema}.publish(
    topic text, payload jsonb, key text DEFAULT NULL, headers jsonb DEFAULT NULL, type text DEFAULT NULL,
    message_id uuid DEFAULT NULL, correlation_id text DEFAULT NULL, dedup_key text DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL
) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT {schema}.publish_bytes(topic, convert_to(payload::text, 'UTF8'), key, headers, type, 'application/json',
                                  message_id, correlation_id, dedup_key, deliver_at)
$$;

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
    IF NOT FOUND THEN
        -- A deleted topic: what it left is being removed.
        RETURN;
    END IF;
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
