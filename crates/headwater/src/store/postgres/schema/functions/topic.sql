-- Creating topics, and the rules for names that plain SQL must meet too.

-- Raises InvalidInput (HW003) naming the field and the rule; null is no name and passes.
CREATE OR REPLACE FUNCTION {schema}.check_name(p_field text, p_value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_value = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format('invalid %s: must not be empty', p_field);
    ELSIF octet_length(p_value) > 255 THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003',
            MESSAGE = format('invalid %s: %s bytes, at most 255 are allowed', p_field, octet_length(p_value));
    ELSIF p_value ~ '[\x01-\x1f\x7f-\x9f]' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format('invalid %s: control characters are not allowed', p_field);
    END IF;
END $$;

-- The number of a topic.
CREATE OR REPLACE FUNCTION {schema}.topic_id_of(p_topic text) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic integer;
BEGIN
    SELECT t.topic_id INTO v_topic FROM {schema}.topic t WHERE t.name = p_topic;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = format('no such topic: %s', p_topic);
    END IF;
    RETURN v_topic;
END $$;

-- Creates a topic or returns the one that is there. Concurrent creators meet at the unique name: one wins, the others
-- wait for its commit and then read its row. p_settings has the columns of "topic" by name. One that has tables of its own from
-- the beginning gets a number of its own kind: see functions/partitions.sql.
CREATE OR REPLACE FUNCTION {schema}.create_topic(p_name text, p_settings jsonb, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_topic integer;
    v_storage text;
BEGIN
    PERFORM {schema}.check_name('topic', p_name);
    INSERT INTO {schema}.topic AS t (
        topic_id, name, semantics, tracking, message_retention_ms, max_retention_ms, zero_subscription_retention_ms, block_writes,
        zombie_subscription_ttl_ms, lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms, ordering, lanes, storage,
        partition, partition_rows, payload_bytes_max, dedup_window_ms, heartbeat_interval_ms, heartbeat_timeout_ms, ack_log,
        gap_patience_ms, created_at)
    OVERRIDING SYSTEM VALUE
    SELECT nextval(CASE n.storage WHEN 'dedicated' THEN '{schema}.dedicated_topic_id'
                                  ELSE pg_get_serial_sequence('{schema}.topic', 'topic_id') END::regclass),
           p_name, n.semantics, n.tracking, n.message_retention_ms, n.max_retention_ms, n.zero_subscription_retention_ms,
           n.block_writes, n.zombie_subscription_ttl_ms, n.lease_ms, n.max_attempts, n.backoff_initial_ms, n.backoff_max_ms,
           n.ordering, n.lanes, n.storage, n.partition, n.partition_rows, n.payload_bytes_max, n.dedup_window_ms,
           n.heartbeat_interval_ms, n.heartbeat_timeout_ms, n.ack_log, n.gap_patience_ms, coalesce(p_now, clock_timestamp())
    FROM jsonb_populate_record(NULL::{schema}.topic, p_settings) n
    ON CONFLICT (name) DO NOTHING
    RETURNING t.topic_id, t.storage INTO v_topic, v_storage;
    IF v_topic IS NULL THEN
        SELECT topic_id INTO STRICT v_topic FROM {schema}.topic WHERE name = p_name;
        RETURN v_topic;
    END IF;
    EXECUTE format('CREATE SEQUENCE {schema}.%I AS bigint CACHE 1', 'topic_' || v_topic || '_offset');
    UPDATE {schema}.topic SET offsets = format('{schema}.%I', 'topic_' || v_topic || '_offset')::regclass
    WHERE topic_id = v_topic;
    INSERT INTO {schema}.head (topic_id) VALUES (v_topic);
    INSERT INTO {schema}.extent (topic_id) VALUES (v_topic);
    IF v_storage = 'dedicated' THEN
        PERFORM {schema}.make_storage(v_topic);
    END IF;
    RETURN v_topic;
END $$;

-- Changes a topic's settings; p_settings as in create_topic. Under the extent's lock, so no group comes meanwhile.
CREATE OR REPLACE FUNCTION {schema}.alter_topic(p_name text, p_settings jsonb, p_actor text, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t {schema}.topic;
    n {schema}.topic := jsonb_populate_record(NULL::{schema}.topic, p_settings);
BEGIN
    SELECT * INTO t FROM {schema}.topic x WHERE x.name = p_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = format('no such topic: %s', p_name);
    END IF;
    PERFORM {schema}.lock_extent(t.topic_id);
    SELECT * INTO STRICT t FROM {schema}.topic x WHERE x.topic_id = t.topic_id FOR NO KEY UPDATE;
    IF t.semantics = 'pub_sub' AND n.semantics = 'queue' AND 1 < (
            SELECT count(*) FROM {schema}.subscription s WHERE s.topic_id = t.topic_id AND s.status <> 'cancelled') THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
            'invalid semantics: topic %s has more than one group, and a queue has one; cancel the others first', p_name);
    END IF;
    IF (t.storage, t.partition, t.partition_rows) IS DISTINCT FROM (n.storage, n.partition, n.partition_rows) THEN
        -- First without a lock: what is refused anyway makes no publisher wait. Then once more, because transactions that have
        -- published and not committed hold the log: only once they ended is it known whether it is empty.
        FOR i IN 1..2 LOOP
            IF EXISTS (SELECT FROM {schema}.message m WHERE m.topic_id = t.topic_id) THEN
                RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
                    'invalid storage: topic %s has messages, and they are not moved; change it while it is empty', p_name);
            END IF;
            IF i = 1 THEN
                PERFORM {schema}.hold_vacuum();
                PERFORM {schema}.lock_log();
            END IF;
        END LOOP;
    END IF;
    UPDATE {schema}.topic x
    SET semantics = n.semantics, message_retention_ms = n.message_retention_ms, max_retention_ms = n.max_retention_ms,
        zero_subscription_retention_ms = n.zero_subscription_retention_ms, block_writes = n.block_writes,
        zombie_subscription_ttl_ms = n.zombie_subscription_ttl_ms, lease_ms = n.lease_ms, max_attempts = n.max_attempts,
        backoff_initial_ms = n.backoff_initial_ms, backoff_max_ms = n.backoff_max_ms, ordering = n.ordering, lanes = n.lanes,
        storage = n.storage, partition = n.partition, partition_rows = n.partition_rows,
        payload_bytes_max = n.payload_bytes_max, dedup_window_ms = n.dedup_window_ms,
        heartbeat_interval_ms = n.heartbeat_interval_ms, heartbeat_timeout_ms = n.heartbeat_timeout_ms, ack_log = n.ack_log,
        gap_patience_ms = n.gap_patience_ms
    WHERE x.topic_id = t.topic_id;
    IF (t.storage, t.partition, t.partition_rows) IS DISTINCT FROM (n.storage, n.partition, n.partition_rows) THEN
        PERFORM {schema}.make_storage(t.topic_id);
    END IF;
    IF n.dedup_window_ms < t.dedup_window_ms THEN
        -- A key beyond the window would count as stored by a clock that was ahead, and be forgotten.
        UPDATE {schema}.dedup d SET expires_at = least(d.expires_at,
            coalesce(p_now, clock_timestamp()) + make_interval(secs => n.dedup_window_ms / 1000.0))
        WHERE d.topic_id = t.topic_id
          -- Those that count as such already stay forgotten.
          AND d.expires_at <= coalesce(p_now, clock_timestamp()) + make_interval(secs => t.dedup_window_ms / 1000.0 + 10);
    END IF;
    IF t.semantics <> n.semantics THEN
        PERFORM {schema}.semantics_changed(t.topic_id, coalesce(p_now, clock_timestamp()));
    END IF;
    IF t.tracking <> n.tracking THEN
        PERFORM {schema}.change_tracking(t.topic_id, n.tracking, coalesce(p_now, clock_timestamp()));
    END IF;
    PERFORM {schema}.note_act(p_actor, 'alter_topic', p_name, NULL, (
        SELECT coalesce(jsonb_object_agg(e.key, jsonb_build_object('from', to_jsonb(t) -> e.key, 'to', e.value)), '{}')
        FROM jsonb_each(p_settings) e WHERE to_jsonb(t) -> e.key IS DISTINCT FROM e.value), p_now);
    RETURN t.topic_id;
END $$;
