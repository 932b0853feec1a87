-- Reading from plain SQL, for programs in any language: docs/sql.md is their manual. Settling is in functions/settle_read.sql.
--
-- A read is a claim, whose owner is the session, and the fetch of what it claimed. Its leases end at their deadlines, however the
-- session ends: such an owner has no row in "owner". Reading is the heartbeat of the group: it keeps a row of the session in
-- "activity" current.
--
-- Transactions. A claim keeps the group's cursor locked until its transaction ends, sometimes the topic's head too, and other claims
-- of the group wait for that. A session of the library ends the transaction at once; a caller of plain SQL may not. So:
--
--   1. A read is the first statement of its transaction that writes, which is checked: a transaction that wrote has an xid. So it
--      holds nothing, of Headwater or of the caller, while it waits for its group, and no cycle of waits contains it. What it locks
--      when it claims again because the first claim found no message, it only tries to lock.
--   2. The server ends a transaction that has read and idles for longer than its lease: the rollback undoes the read, and the
--      messages are handed out to others. A session that has set idle_in_transaction_session_timeout keeps its own value.
--   3. Read committed only: a claim compares snapshots, and needs a new one for each statement (functions/head.sql).
--
-- synchronous_commit stays as it is: the caller's own writes may follow in the transaction.

-- The owner of leases that this session reads.
CREATE OR REPLACE FUNCTION {schema}.reader_name() RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT concat_ws(' ', 'sql', nullif(current_setting('application_name'), ''), pg_backend_pid())
$$;

-- What a read has to know of its group, and when the session last read for it. Raises an error for an unknown group, with those that exist: a misspelt name must neither
-- create a group nor wait for messages that never come.
CREATE OR REPLACE FUNCTION {schema}.find_group(
    p_topic text, p_group text, p_owner text, OUT subscription_id integer, OUT topic_id integer, OUT lanes integer, OUT state text,
    OUT lease_ms bigint, OUT shared boolean, OUT heartbeat_interval_ms bigint, OUT served_at timestamptz
)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT s.subscription_id, t.topic_id, s.lanes, s.state, coalesce(s.lease_ms, t.lease_ms), t.storage = 'shared',
           coalesce(s.heartbeat_interval_ms, t.heartbeat_interval_ms),
           (SELECT a.served_at FROM {schema}.activity a WHERE a.subscription_id = s.subscription_id AND a.owner = p_owner)
    INTO subscription_id, topic_id, lanes, state, lease_ms, shared, heartbeat_interval_ms, served_at
    FROM {schema}.topic t
    LEFT JOIN {schema}.subscription s ON s.topic_id = t.topic_id AND s.group_name = p_group AND s.state <> 'cancelled'
    WHERE t.name = p_topic;
    IF topic_id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = format('no such topic: %s', p_topic);
    ELSIF subscription_id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW005', MESSAGE = format(
            'no such group: topic %s, group %s; %s', p_topic, p_group, coalesce(
                (SELECT 'its groups are ' || string_agg(x.group_name, ', ' ORDER BY x.group_name) FROM {schema}.subscription x
                 WHERE x.topic_id = find_group.topic_id AND x.state <> 'cancelled'), 'it has no group')
                || format('; SELECT {schema}.create_group(%L, %L) creates it', p_topic, p_group));
    END IF;
END $$;

-- Refuses a read that could block others or miss messages: see above.
CREATE OR REPLACE FUNCTION {schema}.check_read(p_qty integer, p_lease_s double precision) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_qty IS NULL OR p_qty NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format('invalid qty: %s, must be from 1 to 10000', p_qty);
    ELSIF p_lease_s <= 0 OR p_lease_s > 31622400 THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
            'invalid lease_s: %s, must be above 0 and at most 31622400 (366 days); null means the lease of the group', p_lease_s);
    ELSIF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
            'invalid transaction: read needs read committed, this transaction is %s', current_setting('transaction_isolation'));
    ELSIF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid transaction: it has written something, settled or read before; '
            'commit it, and read at the beginning of the next one: other readers of the group wait until a read is committed';
    END IF;
END $$;

-- The group's heartbeat, at most twice in a heartbeat interval. The row is the session's own, so no other reader waits for it. Not
-- "serving": a session that stops reading one group and reads another is no heartbeat of the first.
CREATE OR REPLACE FUNCTION {schema}.note_reader(p_owner text, p_subscription_id integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.activity a SET served_at = clock_timestamp() WHERE a.subscription_id = p_subscription_id AND a.owner = p_owner;
    IF NOT FOUND THEN
        -- The row references its subscription, which must not be waited for: the next read adds it.
        WITH free AS MATERIALIZED (
            SELECT s.subscription_id FROM {schema}.subscription s WHERE s.subscription_id = p_subscription_id FOR KEY SHARE SKIP LOCKED
        )
        INSERT INTO {schema}.activity (subscription_id, owner, processed, failed, filtered, rate, handling_mean_us, handling_p95_us,
                                       serving, served_at)
        SELECT f.subscription_id, p_owner, 0, 0, 0, 0, 0, 0, false, clock_timestamp() FROM free f;
    END IF;
END $$;

-- Reduces a lease to the messages that are read under it, and returns their offsets: then settling each of them ends the lease.
-- Offsets without a message are done. In an ordered group, so are messages of other lanes, which belong to other leases; messages
-- of a key that waits for a retry are parked behind it; and from the message after p_max on the rest is released.
CREATE OR REPLACE FUNCTION {schema}.trim_lease(c {schema}.claimed, p_lanes integer, p_max bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.outstanding;
    v_kept bigint[] := '{}';
    v_parked bigint[] := '{}';
    v_keys text[] := '{}';
    v_rest bigint;
    v_offset bigint;
    v_key text;
BEGIN
    -- Planned each time, with values: see functions/log/messages.sql.
    FOR v_offset, v_key IN EXECUTE
        'SELECT m.message_offset, m.key FROM {schema}.messages($1, $2, $3) m
         WHERE $4 IS NULL OR {schema}.lane_of(m.key, m.message_id, $5) = $4 ORDER BY m.message_offset'
        USING c.topic_id, c.first_offset, c.last_offset, c.lane, p_lanes
    LOOP
        IF v_key = ANY (c.blocked_keys) THEN
            v_parked := v_parked || v_offset;
            v_keys := v_keys || v_key;
        ELSIF cardinality(v_kept) < p_max THEN
            v_kept := v_kept || v_offset;
        ELSE
            v_rest := v_offset;
            EXIT;
        END IF;
    END LOOP;
    DELETE FROM {schema}.outstanding o WHERE o.token = c.token RETURNING o.* INTO STRICT r;
    INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, attempts, lane, suspect, owner, key,
                                      last_error)
    SELECT r.token, lower(g), upper(g) - 1, r.due_at, r.subscription_id, r.attempts, r.lane, r.suspect, r.owner, r.key, r.last_error
    FROM (SELECT range_agg(int8range(k, k, '[]')) AS kept FROM unnest(v_kept) k) q CROSS JOIN LATERAL unnest(q.kept) g;
    INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, attempts, lane, suspect, parked, key,
                                      last_error)
    SELECT {schema}.new_token(), u.parked, u.parked, timestamptz '-infinity', r.subscription_id, r.attempts, r.lane, false, true, u.key, r.last_error
    FROM unnest(v_parked, v_keys) AS u (parked, key)
    UNION ALL
    SELECT {schema}.new_token(), v_rest, r.last_offset, timestamptz '-infinity', r.subscription_id, r.attempts, r.lane, r.suspect, false, r.key,
           r.last_error
    WHERE v_rest IS NOT NULL;
    RETURN v_kept;
END $$;

-- A message of an ordered group that has used up its attempts: buried, or done in this lane if it is another lane's.
CREATE OR REPLACE FUNCTION {schema}.end_used_up(c {schema}.claimed, p_lanes integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.messages(c.topic_id, c.first_offset, c.last_offset) m
               WHERE {schema}.lane_of(m.key, m.message_id, p_lanes) = c.lane) THEN
        PERFORM {schema}.bury_range(o.subscription_id, c.topic_id, o.first_offset, o.last_offset, o.attempts + 1, c.detail, o.owner, clock_timestamp())
        FROM {schema}.outstanding o WHERE o.token = c.token;
    END IF;
    DELETE FROM {schema}.outstanding o WHERE o.token = c.token;
END $$;

-- Bytes as JSON; null if they are not JSON. The type json keeps the text as it was published, and is checked without building a tree.
CREATE OR REPLACE FUNCTION {schema}.as_json(p_bytes bytea) RETURNS json
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN convert_from(p_bytes, 'UTF8')::json;
EXCEPTION
    WHEN data_exception OR program_limit_exceeded THEN RETURN NULL;
END $$;

-- Claims for a reader: the common case without the function around it, which costs as much again.
CREATE OR REPLACE FUNCTION {schema}.claim_to_read(p_owner text, p_subscription_id integer, p_lanes integer, p_max bigint, p_lease_ms bigint)
RETURNS {schema}.claimed[]
LANGUAGE plpgsql AS $$
DECLARE
    v_clock timestamptz := clock_timestamp();
    c {schema}.claimed;
BEGIN
    -- The limits are those of the library: limits.rs.
    IF p_lanes = 0 THEN
        c := {schema}.claim_fast(p_owner, p_subscription_id, p_max::integer, p_lease_ms, 20000, v_clock, v_clock);
        IF c.kind IS NOT NULL THEN
            RETURN CASE WHEN c.kind = 'lease' THEN ARRAY[c] END;
        END IF;
    END IF;
    RETURN ARRAY(SELECT x FROM {schema}.claim(p_owner, ARRAY[p_subscription_id], ARRAY[p_max::integer], ARRAY[p_lease_ms], NULL, NULL, NULL,
                                              true, 1000, 20000, 10000, 1000, NULL) x
                 WHERE x.kind IN ('lease', 'used_up'));
END $$;

-- Reads up to p_qty messages of a group, with payloads as JSON or as bytes. Nothing if none is deliverable now, or the group is paused.
--
-- A claim may find no message: offsets that were rolled back, or a lane without messages. Then the next claim follows, at most once
-- for each lane and a few more, so that no rows mean that there are no messages.
CREATE OR REPLACE FUNCTION {schema}.read_messages(p_topic text, p_group text, p_qty integer, p_lease_s double precision, p_json boolean)
RETURNS TABLE (token bigint, message_offset bigint, message_id uuid, key text, type text, headers jsonb, json json, bytes bytea,
               attempt integer, content_type text, correlation_id text, created_at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_owner text := {schema}.reader_name();
    s record;
    v_claimed {schema}.claimed[];
    c {schema}.claimed;
    v_lease_ms bigint;
    v_offsets bigint[];
    v_rows bigint;
    v_left bigint := p_qty;
BEGIN
    PERFORM {schema}.check_read(p_qty, p_lease_s);
    SELECT * INTO s FROM {schema}.find_group(p_topic, p_group, v_owner);
    -- A lease that never ends would keep its messages for ever if the session ends.
    v_lease_ms := coalesce(ceil(p_lease_s * 1000)::bigint, nullif(s.lease_ms, 0), 300000);
    IF s.state = 'dead' THEN
        PERFORM {schema}.revive_served(ARRAY[s.subscription_id], NULL);
    END IF;
    FOR i IN 1..s.lanes + 10 LOOP
        v_claimed := coalesce({schema}.claim_to_read(v_owner, s.subscription_id, s.lanes, v_left, v_lease_ms), '{}');
        FOREACH c IN ARRAY v_claimed LOOP
            IF c.kind = 'used_up' THEN
                PERFORM {schema}.end_used_up(c, s.lanes);
                CONTINUE;
            END IF;
            v_offsets := CASE WHEN c.lane IS NOT NULL THEN {schema}.trim_lease(c, s.lanes, v_left) END;
            IF s.shared THEN
                -- All payloads at once, and one by one only if one of them is not JSON: to catch an error for each costs more than to
                -- parse it. The sort needs all rows before it returns the first, so a failed statement has returned none.
                BEGIN
                    RETURN QUERY SELECT c.token, q.* FROM (
                        SELECT m.message_offset, m.message_id, m.key, m.message_type, m.headers,
                               CASE WHEN p_json THEN convert_from(m.payload, 'UTF8')::json END, CASE WHEN NOT p_json THEN m.payload END,
                               c.attempt, m.content_type, m.correlation_id, m.created_at
                        FROM {schema}.shared_messages(c.topic_id, c.first_offset, c.last_offset) m
                        WHERE v_offsets IS NULL OR m.message_offset = ANY (v_offsets) OFFSET 0) q
                    ORDER BY q.message_offset + 0;
                    GET DIAGNOSTICS v_rows = ROW_COUNT;
                EXCEPTION
                    WHEN data_exception OR program_limit_exceeded THEN v_rows := NULL;
                END;
            END IF;
            IF v_rows IS NULL THEN
                RETURN QUERY EXECUTE
                    'SELECT $1, m.message_offset, m.message_id, m.key, m.message_type, m.headers, CASE WHEN $7 THEN {schema}.as_json(m.payload) END,
                            CASE WHEN NOT $7 THEN m.payload END, $2, m.content_type, m.correlation_id, m.created_at
                     FROM {schema}.messages($3, $4, $5) m WHERE $6 IS NULL OR m.message_offset = ANY ($6) ORDER BY m.message_offset'
                    USING c.token, c.attempt, c.topic_id, c.first_offset, c.last_offset, v_offsets, p_json;
                GET DIAGNOSTICS v_rows = ROW_COUNT;
            END IF;
            v_left := v_left - v_rows;
            IF c.lane IS NULL AND v_rows < c.last_offset - c.first_offset + 1 THEN
                PERFORM {schema}.trim_lease(c, 0, v_rows);
            END IF;
            v_rows := NULL;
        END LOOP;
        EXIT WHEN v_left < p_qty OR cardinality(v_claimed) = 0;
    END LOOP;
    IF (s.served_at BETWEEN clock_timestamp() - make_interval(secs => s.heartbeat_interval_ms / 2000.0) AND clock_timestamp()) IS NOT TRUE THEN
        PERFORM {schema}.note_reader(v_owner, s.subscription_id);
    END IF;
    IF v_left < p_qty AND current_setting('idle_in_transaction_session_timeout') = '0' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', least(v_lease_ms, 2147483647)::text, true);
    END IF;
END $$;

-- Reads up to qty messages of a group, with payloads as JSON; null where a payload is not JSON.
CREATE OR REPLACE FUNCTION {schema}.read(topic text, group_name text, qty integer DEFAULT 1, lease_s double precision DEFAULT NULL)
RETURNS TABLE (token bigint, message_offset bigint, message_id uuid, key text, type text, headers jsonb, payload json, attempt integer,
               content_type text, correlation_id text, created_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT r.token, r.message_offset, r.message_id, r.key, r.type, r.headers, r.json, r.attempt, r.content_type, r.correlation_id,
                        r.created_at
        FROM {schema}.read_messages(topic, group_name, qty, lease_s, true) r;
END $$;

-- The same with payloads as bytes.
CREATE OR REPLACE FUNCTION {schema}.read_bytes(topic text, group_name text, qty integer DEFAULT 1, lease_s double precision DEFAULT NULL)
RETURNS TABLE (token bigint, message_offset bigint, message_id uuid, key text, type text, headers jsonb, payload bytea, attempt integer,
               content_type text, correlation_id text, created_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT r.token, r.message_offset, r.message_id, r.key, r.type, r.headers, r.bytes, r.attempt, r.content_type, r.correlation_id,
                        r.created_at
        FROM {schema}.read_messages(topic, group_name, qty, lease_s, false) r;
END $$;

-- Prepares to wait for messages: the session listens, and publishers of the topic notify for the next 40 seconds. Once this is
-- committed, read again, and only if there is nothing wait for a notification, at most wait_s seconds: a publisher that did not
-- see the flag had taken its offsets before (see "wake"), and the read finds its message or wait_s is short. No notification is sent when a
-- retry, an expired lease or a scheduled message becomes due, nor where the server allows prepared transactions; wait_s ends then.
CREATE OR REPLACE FUNCTION {schema}.listen(topic text, group_name text, OUT channel text, OUT wait_s double precision)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s record;
BEGIN
    SELECT * INTO s FROM {schema}.find_group(topic, group_name, NULL);
    channel := 'headwater:{name}';
    EXECUTE format('LISTEN %I', channel);
    -- One flag per session: no session waits for another's.
    INSERT INTO {schema}.waiter AS w (topic_id, waiter_id, until)
    VALUES (s.topic_id, lpad(to_hex(pg_backend_pid()), 32, '0')::uuid, clock_timestamp() + interval '40 seconds')
    ON CONFLICT (topic_id, waiter_id) DO UPDATE SET until = excluded.until;
    wait_s := least(30, {schema}.recheck_ms(s.subscription_id, s.topic_id, '-infinity', clock_timestamp()) / 1000.0,
                    CASE WHEN current_setting('max_prepared_transactions') <> '0' THEN 0.2 END);
END $$;

-- Creates a group, at the beginning of what is stored, at now, at an offset ('1200') or at a time ('2026-01-31 12:00Z'). False, and
-- nothing is changed, if there is one of this name. A second group of a queue is refused.
CREATE OR REPLACE FUNCTION {schema}.create_group(topic text, group_name text, start text DEFAULT 'beginning') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    v_start text := CASE WHEN start IN ('beginning', 'now') THEN start WHEN start ~ '^[0-9]{1,18}$' THEN 'offset' ELSE 'timestamp' END;
    v_at timestamptz;
BEGIN
    IF topic IS NULL OR group_name IS NULL OR start IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid group: topic, group_name and start must not be null';
    END IF;
    BEGIN
        v_at := CASE WHEN v_start = 'timestamp' THEN start::timestamptz END;
    EXCEPTION
        WHEN data_exception THEN
            RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
                'invalid start: %s; must be beginning, now, an offset or a time', start);
    END;
    IF EXISTS (SELECT FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
               WHERE t.name = topic AND s.group_name = create_group.group_name AND s.state <> 'cancelled') THEN
        RETURN false;
    END IF;
    PERFORM {schema}.subscribe(topic, group_name, v_start, CASE WHEN v_start = 'offset' THEN start::bigint END, v_at, 600000, NULL);
    RETURN true;
END $$;
