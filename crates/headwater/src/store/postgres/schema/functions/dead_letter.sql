-- Dead letters of every source: parked commands, entries of the outbox that ran out of attempts, and how these are redriven or deleted.
-- Those of a subscription are redriven by functions/redrive.sql.
--
-- Locks: entries of the outbox (by id) before dead letters (by id), as in sweeps and marks that park.

-- The dead letter of an entry of the outbox that becomes PARKED now.
CREATE OR REPLACE FUNCTION {schema}.dead_letter_of(p_entry {schema}.outbox_entry, p_failed_status text, p_now timestamptz)
RETURNS {schema}.dead_letter
LANGUAGE plpgsql AS $$
DECLARE
    d {schema}.dead_letter;
    v_command_id text := p_entry.headers ->> 'commandId';
BEGIN
    d.dead_letter_id := gen_random_uuid();
    d.source := 'outbox';
    d.outbox_id := p_entry.id;
    -- A header may be longer than an id; a dead letter that cannot be stored would keep the entry from ending.
    d.command_id := CASE WHEN octet_length(v_command_id) BETWEEN 1 AND 255 THEN v_command_id ELSE p_entry.id::text END;
    d.topic := p_entry.topic;
    d.key := p_entry.key;
    d.message_type := p_entry.type;
    d.payload := p_entry.payload;
    d.headers := p_entry.headers;
    d.created_at := p_entry.created_at;
    d.failed_status := p_failed_status;
    d.error := p_entry.last_error;
    d.attempts := p_entry.attempts;
    d.parked_by := p_entry.claimed_by;
    d.buried_at := p_now;
    RETURN d;
END $$;

-- Raises InvalidInput (HW003) if a text is empty or longer than its limit; null is allowed.
CREATE OR REPLACE FUNCTION {schema}.check_length(p_field text, p_value text, p_bytes_max integer) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_value = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format('invalid %s: must not be empty', p_field);
    ELSIF octet_length(p_value) > p_bytes_max THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003',
            MESSAGE = format('invalid %s: %s bytes, at most %s are allowed', p_field, octet_length(p_value), p_bytes_max);
    END IF;
END $$;

-- Parks a command for manual intervention, and returns the id of its dead letter. With a topic a redrive publishes it there.
CREATE OR REPLACE FUNCTION {schema}.park(
    command_id text, command_name text, business_key text, payload bytea, failed_status text, error_class text, error_message text,
    attempts integer, parked_by text, topic text DEFAULT NULL, headers jsonb DEFAULT NULL, p_now {schema}.injected_time DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_id uuid;
BEGIN
    IF command_id IS NULL OR command_name IS NULL OR payload IS NULL OR attempts IS NULL OR attempts < 0 OR parked_by IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003',
            MESSAGE = 'invalid dead letter: command_id, command_name, payload, attempts and parked_by must not be null, and attempts not negative';
    END IF;
    PERFORM {schema}.check_length('command_id', command_id, 255), {schema}.check_name('command_name', command_name),
            {schema}.check_name('business_key', business_key), {schema}.check_length('failed_status', failed_status, 50),
            {schema}.check_length('error_class', error_class, 255), {schema}.check_length('parked_by', parked_by, 100),
            {schema}.check_name('topic', topic);
    IF headers IS NOT NULL THEN
        PERFORM {schema}.check_headers(ARRAY[headers]);
    END IF;
    IF octet_length(payload) > 67108864 THEN
        RAISE EXCEPTION USING ERRCODE = 'HW002', DETAIL = octet_length(payload) || ' 67108864', MESSAGE = format(
            'payload too large: %s bytes, a dead letter allows 67108864; store the payload elsewhere', octet_length(payload));
    END IF;
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    INSERT INTO {schema}.dead_letter AS d (source, command_id, message_type, key, payload, failed_status, error_class, error, attempts,
                                           parked_by, topic, headers, created_at, buried_at)
    VALUES ('command', park.command_id, command_name, business_key, park.payload, park.failed_status, park.error_class,
            {schema}.bounded_error(error_message), park.attempts, park.parked_by, park.topic, park.headers, v_now, v_now)
    RETURNING d.dead_letter_id INTO v_id;
    RETURN v_id;
END $$;

-- Redrives dead letters that are no subscription's: an entry of the outbox becomes NEW with no attempts, a command is published to its
-- topic. The dead letter is deleted in the same transaction, so of two redrives the second finds nothing. Returns those that were
-- redriven. A command without a topic is refused, and then nothing is changed.
CREATE OR REPLACE FUNCTION {schema}.redrive_parked(p_ids uuid[], p_actor text, p_now {schema}.injected_time) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_redriven uuid[] := '{}';
    d {schema}.dead_letter;
BEGIN
    PERFORM FROM {schema}.outbox_entry e
    WHERE e.id IN (SELECT x.outbox_id FROM {schema}.dead_letter x WHERE x.dead_letter_id = ANY (p_ids)) ORDER BY e.id FOR UPDATE;
    FOR d IN
        SELECT x.* FROM {schema}.dead_letter x WHERE x.dead_letter_id = ANY (p_ids) AND x.source IS NOT NULL
        ORDER BY x.dead_letter_id FOR UPDATE
    LOOP
        IF d.source = 'outbox' THEN
            UPDATE {schema}.outbox_entry e
            SET status = 'NEW', attempts = 0, next_at = NULL, claimed_by = NULL, claimed_at = NULL
            WHERE e.id = d.outbox_id AND e.status = 'PARKED';
            CONTINUE WHEN NOT FOUND;
            PERFORM {schema}.wake(0, false, false);
        ELSIF d.topic IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
                'invalid dead letter: %s is a command without a topic, and nothing was changed; send it by its own means and delete the dead '
                'letter, or park it with a topic', d.dead_letter_id);
        ELSE
            PERFORM {schema}.publish_batch(
                d.topic, ARRAY[CASE WHEN d.command_id ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN d.command_id::uuid
                                    ELSE {schema}.new_message_id() END],
                ARRAY[d.payload], ARRAY[d.key], ARRAY[d.message_type], ARRAY[d.content_type],
                CASE WHEN d.headers IS NOT NULL THEN ARRAY[d.headers] END, ARRAY[d.correlation_id], NULL, NULL, p_now, false);
        END IF;
        DELETE FROM {schema}.dead_letter x WHERE x.dead_letter_id = d.dead_letter_id;
        v_redriven := v_redriven || d.dead_letter_id;
    END LOOP;
    PERFORM {schema}.note_act(p_actor, 'redrive', NULL, NULL, jsonb_build_object('redriven', cardinality(v_redriven)), p_now);
    RETURN QUERY SELECT unnest(v_redriven);
END $$;

-- Deletes dead letters of any source permanently; that of a parked entry of the outbox with the entry. Returns those that were deleted.
CREATE OR REPLACE FUNCTION {schema}.delete_dead_letters(p_ids uuid[], p_actor text, p_now {schema}.injected_time) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_deleted uuid[];
    v_entries bigint[];
BEGIN
    PERFORM FROM {schema}.outbox_entry e
    WHERE e.id IN (SELECT x.outbox_id FROM {schema}.dead_letter x WHERE x.dead_letter_id = ANY (p_ids)) ORDER BY e.id FOR UPDATE;
    PERFORM FROM {schema}.dead_letter x WHERE x.dead_letter_id = ANY (p_ids) ORDER BY x.dead_letter_id FOR UPDATE;
    WITH deleted AS (
        DELETE FROM {schema}.dead_letter x WHERE x.dead_letter_id = ANY (p_ids) RETURNING x.dead_letter_id, x.outbox_id
    )
    SELECT coalesce(array_agg(r.dead_letter_id), '{}'), coalesce(array_agg(r.outbox_id) FILTER (WHERE r.outbox_id IS NOT NULL), '{}')
    INTO v_deleted, v_entries FROM deleted r;
    DELETE FROM {schema}.outbox_entry e WHERE e.id = ANY (v_entries) AND e.status = 'PARKED';
    PERFORM {schema}.note_act(p_actor, 'delete_dead_letters', NULL, NULL, jsonb_build_object('deleted', cardinality(v_deleted)), p_now);
    RETURN QUERY SELECT unnest(v_deleted);
END $$;
