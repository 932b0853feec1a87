-- Redrives and purges dead letters. The lane of a message depends on a stable hash, which only the client computes and passes.

-- Hands out dead letters to their subscription again, as if they had never been handed out. The dead letter is deleted and its
-- offset becomes outstanding in one transaction, so of two redrives of a dead letter the second finds nothing. A dead letter
-- whose message is not in the log stays.
--
-- The cursors are locked first, as in claims: an offset that its lane has not reached yet, or that is already outstanding, will
-- be delivered anyway and must not be delivered twice. This happens because burying a whole range of an ordered subscription also
-- buries messages of other lanes in it.
--
-- The topic range is locked before the messages are read, so that cleanup does not remove one that is about to be outstanding; in a
-- shared mode, because redrives do not conflict with each other.
--
-- A call may take many steps. The last step writes the audit entry, with the number of messages redriven by all steps, and the
-- number of dead letters that stayed because their message is gone.
CREATE OR REPLACE FUNCTION {schema}.redrive(
    p_subscription_id integer, p_ids uuid[], p_lanes integer[], p_before bigint, p_gone bigint, p_is_last boolean,
    p_actor text, p_now {schema}.injected_time, OUT redriven bigint, OUT topic_id integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_state text;
    v_topic text;
    v_group text;
    v_stored bigint[];
BEGIN
    redriven := 0;
    SELECT s.topic_id INTO redrive.topic_id FROM {schema}.subscription s WHERE s.subscription_id = p_subscription_id;
    PERFORM FROM {schema}.topic_range e WHERE e.topic_id = redrive.topic_id FOR SHARE;
    SELECT s.state, t.name, s.group_name INTO v_state, v_topic, v_group
    FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
    WHERE s.subscription_id = p_subscription_id;
    IF NOT FOUND THEN
        -- Just removed, with its dead letters.
        RETURN;
    END IF;
    IF v_state = 'cancelled' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW007', MESSAGE = format(
            'invalid transition: topic %s, group %s is cancelled; redrive needs active or paused or dead; nothing was changed',
            v_topic, v_group);
    END IF;
    PERFORM FROM {schema}.cursor c
    WHERE c.subscription_id = p_subscription_id AND c.lane IN (SELECT coalesce(l, 0) FROM unnest(p_lanes) l)
    ORDER BY c.lane FOR UPDATE;
    v_stored := {schema}.stored_among(redrive.topic_id, ARRAY(
        SELECT d.message_offset FROM {schema}.dead_letter d WHERE d.dead_letter_id = ANY (p_ids) ORDER BY d.dead_letter_id FOR UPDATE));
    WITH letter AS (
        DELETE FROM {schema}.dead_letter d USING unnest(p_ids, p_lanes) AS w (id, lane)
        WHERE d.dead_letter_id = w.id AND d.subscription_id = p_subscription_id AND d.message_offset = ANY (v_stored)
        RETURNING d.message_offset, d.key, w.lane
    ), once AS (
        SELECT DISTINCT ON (l.message_offset) l.message_offset, l.key, l.lane FROM letter l
        JOIN {schema}.cursor c ON c.subscription_id = p_subscription_id AND c.lane = coalesce(l.lane, 0)
        WHERE l.message_offset < c.next_offset
        ORDER BY l.message_offset
    ), held AS (
        SELECT o.lane, range_agg(int8range(o.first_offset, o.last_offset, '[]')) AS offsets
        FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id GROUP BY o.lane
    ), again AS (
        INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, lane, key)
        SELECT {schema}.new_token(), n.message_offset, n.message_offset, '-infinity', p_subscription_id, n.lane,
               CASE WHEN n.lane IS NOT NULL THEN n.key END
        FROM once n LEFT JOIN held h ON h.lane IS NOT DISTINCT FROM n.lane
        WHERE h.offsets IS NULL OR NOT h.offsets @> n.message_offset
    )
    SELECT count(*) INTO redriven FROM letter;
    IF p_is_last THEN
        PERFORM {schema}.note_act(p_actor, 'redrive', v_topic, v_group,
                                  jsonb_build_object('redriven', p_before + redriven, 'gone', p_gone), p_now);
    END IF;
    IF redriven > 0 THEN
        -- Without checking flags: a flag raised while this runs is not visible, and a redrive is rare.
        PERFORM {schema}.wake(redrive.topic_id, true, true);
    END IF;
END $$;

-- Publishes an edited copy of a dead letter and deletes the dead letter. Of two calls the second waits for the row, and finds it gone
-- if the first committed. Returns no offsets if it changed nothing: no such dead letter, or other groups would get the copy, too.
CREATE OR REPLACE FUNCTION {schema}.replace_dead_letter(
    p_subscription_id integer, p_id uuid, p_all_groups boolean, p_message_id uuid, p_payload bytea, p_key text, p_type text,
    p_content_type text, p_headers jsonb, p_correlation_id text, p_actor text, p_now {schema}.injected_time,
    OUT topic_id integer, OUT topic text, OUT offsets bigint[], OUT duplicate_of uuid[], OUT others text[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_state text;
    v_group text;
    v_from bigint;
BEGIN
    SELECT s.topic_id, s.state, s.group_name, t.name INTO replace_dead_letter.topic_id, v_state, v_group, replace_dead_letter.topic
    FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
    WHERE s.subscription_id = p_subscription_id;
    IF v_state = 'cancelled' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW007', MESSAGE = format(
            'invalid transition: topic %s, group %s is cancelled; replace needs active or paused or dead; nothing was changed',
            replace_dead_letter.topic, v_group);
    END IF;
    others := ARRAY(SELECT s.group_name FROM {schema}.subscription s
                    WHERE s.topic_id = replace_dead_letter.topic_id AND s.state <> 'cancelled' AND s.subscription_id <> p_subscription_id
                    ORDER BY s.group_name);
    IF cardinality(others) > 0 AND NOT p_all_groups THEN
        RETURN;
    END IF;
    DELETE FROM {schema}.dead_letter d WHERE d.dead_letter_id = p_id AND d.subscription_id = p_subscription_id
    RETURNING d.message_offset INTO v_from;
    IF NOT FOUND THEN
        others := '{}';
        RETURN;
    END IF;
    SELECT b.offsets, b.duplicate_of INTO replace_dead_letter.offsets, replace_dead_letter.duplicate_of
    FROM {schema}.publish_batch(
        replace_dead_letter.topic, ARRAY[p_message_id], ARRAY[p_payload], ARRAY[p_key], ARRAY[p_type], ARRAY[p_content_type],
        CASE WHEN p_headers IS NOT NULL THEN ARRAY[p_headers] END, ARRAY[p_correlation_id], NULL, NULL, p_now, true) b;
    PERFORM {schema}.note_act(p_actor, 'replace_dead_letter', replace_dead_letter.topic, v_group, jsonb_build_object(
        'dead_letter', p_id, 'from', v_from, 'offset', offsets[1], 'message_id', p_message_id), p_now);
END $$;

-- Removes dead letters permanently; returns how many. The last step of a call writes the audit entry.
CREATE OR REPLACE FUNCTION {schema}.purge(
    p_subscription_id integer, p_ids uuid[], p_before bigint, p_is_last boolean, p_actor text, p_now {schema}.injected_time
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_count bigint;
BEGIN
    PERFORM FROM {schema}.dead_letter d WHERE d.dead_letter_id = ANY (p_ids) ORDER BY d.dead_letter_id FOR UPDATE;
    DELETE FROM {schema}.dead_letter d WHERE d.dead_letter_id = ANY (p_ids) AND d.subscription_id = p_subscription_id;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF p_is_last THEN
        PERFORM {schema}.note_act(p_actor, 'purge', t.name, s.group_name, jsonb_build_object('purged', p_before + v_count), p_now)
        FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
        WHERE s.subscription_id = p_subscription_id;
    END IF;
    RETURN v_count;
END $$;

-- A step of a removal: deletes dead letters of cancelled subscriptions of a group name that are released from the records, fewer
-- than p_max if their payloads are large. Returns how many, 0 once all are deleted, and the position of the last: the next step begins there and
-- does not visit deleted rows again, which an old snapshot keeps.
--
-- Cancelled is final: such a subscription is never claimed for, buried for, redriven to or resurrected, and a group of the same
-- name that subscribes gets another subscription. A crash between steps leaves it cancelled with fewer dead letters, and the next
-- removal continues. Only its dead letters are locked, and none is waited for. A step that is lost in a crash is repeated.
CREATE OR REPLACE FUNCTION {schema}.empty_cancelled(
    p_topic text, p_group text, p_max integer, INOUT subscription_id integer, INOUT buried_at timestamptz,
    INOUT message_offset bigint, OUT dead_letters bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_variable
DECLARE
    s {schema}.subscription := {schema}.find_subscription(p_topic, p_group);
    v_id integer;
    v_rows tid[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    dead_letters := 0;
    FOR v_id IN
        SELECT x.subscription_id FROM {schema}.subscription x WHERE x.topic_id = s.topic_id AND x.group_name = p_group
        AND x.state = 'cancelled' AND x.released_until IS NULL AND x.subscription_id >= subscription_id ORDER BY x.subscription_id
    LOOP
        IF v_id > subscription_id THEN
            subscription_id := v_id;
            buried_at := '-infinity';
        END IF;
        WITH page AS (
            SELECT d.ctid AS row, d.buried_at AS at, d.message_offset AS "offset", pg_column_size(d.payload) AS bytes
            FROM {schema}.dead_letter d
            WHERE d.subscription_id = v_id AND (d.buried_at, d.message_offset) >= (buried_at, message_offset)
            ORDER BY d.buried_at, d.message_offset LIMIT p_max FOR UPDATE SKIP LOCKED
        ), summed AS (
            SELECT p.*, sum(p.bytes) OVER (ORDER BY p.at, p."offset", p.row) - p.bytes AS bytes_before FROM page p
        )
        SELECT array_agg(q.row), count(*), max(q.at), (array_agg(q."offset" ORDER BY q.at DESC, q."offset" DESC))[1]
        INTO v_rows, dead_letters, buried_at, message_offset
        FROM summed q WHERE q.bytes_before < {schema}.removal_bytes();
        IF dead_letters > 0 THEN
            DELETE FROM {schema}.dead_letter d WHERE d.ctid = ANY (v_rows);
            RETURN;
        END IF;
    END LOOP;
END $$;
