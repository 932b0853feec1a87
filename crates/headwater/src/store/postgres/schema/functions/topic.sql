-- Creating topics, and the rules for names, which also apply to plain SQL.

-- Raises InvalidInput (HW003) naming the field and the rule; null means no name and is allowed.
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

-- The id of a topic.
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

-- Creates a topic or returns the existing one. Concurrent creators conflict at the unique name: one inserts, the others wait for
-- its commit and then read its row. A topic with dedicated tables from the beginning gets an id of another range: see
-- functions/log/partitions.sql.
CREATE OR REPLACE FUNCTION {schema}.store_topic(p_name text, p_settings jsonb, p_now {schema}.injected_time) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_topic integer;
    v_storage text;
BEGIN
    PERFORM {schema}.check_name('topic', p_name);
    LOOP
        INSERT INTO {schema}.topic AS t (topic_id, name, settings, created_at) OVERRIDING SYSTEM VALUE
        VALUES (nextval(CASE WHEN p_settings ->> 'storage' = 'shared' THEN pg_get_serial_sequence('{schema}.topic', 'topic_id')
                             ELSE '{schema}.dedicated_topic_id' END::regclass),
                p_name, p_settings, coalesce(p_now, clock_timestamp()))
        ON CONFLICT (name) DO NOTHING
        RETURNING t.topic_id, t.storage INTO v_topic, v_storage;
        EXIT WHEN v_topic IS NOT NULL;
        SELECT topic_id INTO v_topic FROM {schema}.topic WHERE name = p_name;
        IF FOUND THEN
            RETURN v_topic;
        END IF;
        -- The other topic was deleted in between.
    END LOOP;
    EXECUTE format('CREATE SEQUENCE {schema}.%I AS bigint CACHE 1', 'topic_' || v_topic || '_offset');
    UPDATE {schema}.topic SET offsets = format('{schema}.%I', 'topic_' || v_topic || '_offset')::regclass
    WHERE topic_id = v_topic;
    INSERT INTO {schema}.head (topic_id) VALUES (v_topic);
    INSERT INTO {schema}.topic_range (topic_id) VALUES (v_topic);
    IF v_storage = 'dedicated' THEN
        PERFORM {schema}.make_storage(v_topic);
    END IF;
    RETURN v_topic;
END $$;

-- Creates a topic with the default settings of its kind, for plain SQL; false if there is one of this name. The library puts its
-- defaults in (topic/settings.rs); it and `headwater topic alter` change them, and check the values.
CREATE OR REPLACE FUNCTION {schema}.create_topic(topic text, semantics text DEFAULT 'queue') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF topic IS NULL OR semantics IS NULL OR semantics NOT IN ('queue', 'pub_sub') THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid topic: its name must not be null, and semantics must be queue or pub_sub';
    ELSIF EXISTS (SELECT FROM {schema}.topic t WHERE t.name = topic) THEN
        RETURN false;
    END IF;
    PERFORM {schema}.store_topic(
        topic, CASE semantics WHEN 'queue' THEN '{queue_settings}'::jsonb ELSE '{pub_sub_settings}'::jsonb END, NULL);
    RETURN true;
END $$;

-- Changes a topic's settings. Settings that p_settings does not name stay: a later version may use them. Under the topic range's lock,
-- so that no group subscribes meanwhile; of concurrent calls with the same settings only the first one changes and audits anything.
CREATE OR REPLACE FUNCTION {schema}.alter_topic(p_name text, p_settings jsonb, p_actor text, p_now {schema}.injected_time) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t {schema}.topic;
    n {schema}.topic;
    v_groups text[];
    v_changed jsonb;
BEGIN
    PERFORM {schema}.lock_topic_range({schema}.topic_id_of(p_name));
    SELECT * INTO STRICT t FROM {schema}.topic x WHERE x.name = p_name FOR NO KEY UPDATE;
    -- Written first, so that the generated columns have the new values; an error below rolls it back. The tracking mode is
    -- changed last, by its own function.
    UPDATE {schema}.topic x SET settings = t.settings || p_settings || jsonb_build_object('tracking', t.tracking)
    WHERE x.topic_id = t.topic_id
    RETURNING x.* INTO STRICT n;
    IF t.semantics = 'pub_sub' AND n.semantics = 'queue' THEN
        v_groups := ARRAY(SELECT s.group_name FROM {schema}.subscription s WHERE s.topic_id = t.topic_id AND s.state <> 'cancelled'
                          ORDER BY s.group_name);
        IF cardinality(v_groups) > 1 THEN
            RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
                'invalid semantics: topic %s has the groups %s; a queue has one: cancel the others first', p_name,
                array_to_string(v_groups, ', '));
        END IF;
    END IF;
    IF t.settings ->> 'storage' <> n.settings ->> 'storage' THEN
        -- First without a lock: a change that is refused anyway must not make publishers wait. Then again under the lock, because
        -- of transactions that have published and not committed: only once they ended is it known whether the topic is empty.
        FOR i IN 1..2 LOOP
            IF EXISTS (SELECT FROM {schema}.messages(t.topic_id)) THEN
                RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
                    'invalid storage: topic %s has messages; storage changes only while it has none', p_name);
            END IF;
            IF i = 1 THEN
                PERFORM {schema}.hold_vacuum();
                PERFORM {schema}.lock_log();
            END IF;
        END LOOP;
        PERFORM {schema}.make_storage(t.topic_id);
    END IF;
    IF n.dedup_window_ms < t.dedup_window_ms THEN
        -- A key beyond the new window would count as stored while the clock was ahead, and be ignored.
        UPDATE {schema}.dedup d SET expires_at = least(d.expires_at,
            coalesce(p_now, clock_timestamp()) + make_interval(secs => n.dedup_window_ms / 1000.0))
        WHERE d.topic_id = t.topic_id
          -- Keys that already count as such stay ignored.
          AND d.expires_at <= coalesce(p_now, clock_timestamp()) + make_interval(secs => t.dedup_window_ms / 1000.0 + 10);
    END IF;
    IF t.semantics <> n.semantics THEN
        PERFORM {schema}.semantics_changed(t.topic_id, coalesce(p_now, clock_timestamp()));
    END IF;
    PERFORM {schema}.change_tracking(t.topic_id, coalesce(p_settings ->> 'tracking', t.tracking), coalesce(p_now, clock_timestamp()));
    SELECT jsonb_object_agg(e.key, jsonb_build_object('from', t.settings -> e.key, 'to', e.value)) INTO v_changed
    FROM jsonb_each(p_settings) e WHERE t.settings -> e.key IS DISTINCT FROM e.value;
    IF v_changed IS NOT NULL THEN
        PERFORM {schema}.note_act(p_actor, 'alter_topic', p_name, NULL, v_changed, p_now);
    END IF;
    RETURN t.topic_id;
END $$;
