-- Creating topics, and the rules for names that plain SQL must meet too.

-- Raises InvalidInput (HW003) naming the field and the rule; null is no name and passes.
CREATE FUNCTION {schema}.check_name(p_field text, p_value text) RETURNS void
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

-- Creates a topic or returns the one that is there. Concurrent creators meet at the unique name: one wins, the others
-- wait for its commit and then read its row.
CREATE FUNCTION {schema}.create_topic(
    p_name text, p_semantics text, p_lease_ms bigint, p_max_attempts integer, p_backoff_initial_ms bigint,
    p_backoff_max_ms bigint, p_ordering text, p_lanes integer, p_payload_bytes_max integer, p_dedup_window_ms bigint,
    p_gap_patience_ms bigint, p_now timestamptz
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_topic integer;
BEGIN
    PERFORM {schema}.check_name('topic', p_name);
    INSERT INTO {schema}.topic (name, semantics, lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms, ordering,
                                lanes, payload_bytes_max, dedup_window_ms, gap_patience_ms, created_at)
    VALUES (p_name, p_semantics, p_lease_ms, p_max_attempts, p_backoff_initial_ms, p_backoff_max_ms, p_ordering,
            p_lanes, p_payload_bytes_max, p_dedup_window_ms, p_gap_patience_ms, coalesce(p_now, clock_timestamp()))
    ON CONFLICT (name) DO NOTHING
    RETURNING topic_id INTO v_topic;
    IF v_topic IS NULL THEN
        SELECT topic_id INTO STRICT v_topic FROM {schema}.topic WHERE name = p_name;
        RETURN v_topic;
    END IF;
    EXECUTE format('CREATE SEQUENCE {schema}.%I AS bigint CACHE 1', 'topic_' || v_topic || '_offset');
    UPDATE {schema}.topic SET offsets = format('{schema}.%I', 'topic_' || v_topic || '_offset')::regclass
    WHERE topic_id = v_topic;
    INSERT INTO {schema}.head (topic_id) VALUES (v_topic);
    INSERT INTO {schema}.extent (topic_id) VALUES (v_topic);
    RETURN v_topic;
END $$;
