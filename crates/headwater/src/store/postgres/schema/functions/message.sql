-- One message of a group, changed by an operator.

-- Skips, buries or retries a message, if its state is one of p_from. p_lane is the lane of the message in an ordered subscription,
-- else null. Only this message changes: its neighbours in a range keep what they have, under new tokens; what was not handed out
-- before it waits, due at once. Returns the state it found; not_final if the head has not reached the offset.
--
-- Locks as a seek does: no claim is running for the subscription, and no late message is handed out meanwhile. Offsets of recorded
-- gaps are left out of the range before the cursor: a message that commits there becomes a range of its own.
CREATE OR REPLACE FUNCTION {schema}.act_on_message(
    p_topic text, p_group text, p_offset bigint, p_lane integer, p_act text, p_from text[], p_reason text, p_actor text,
    p_now {schema}.injected_time,
    OUT topic_id integer, OUT state text, OUT changed boolean
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    s {schema}.subscription := {schema}.find_subscription(p_topic, p_group);
    r {schema}.outstanding;
    v_token bigint;
    v_head bigint;
    v_next bigint;
    v_owner text;
BEGIN
    changed := false;
    topic_id := s.topic_id;
    PERFORM {schema}.lock_topic_range(s.topic_id);
    PERFORM {schema}.hold_claims(ARRAY[s.subscription_id], true);
    SELECT h.head INTO v_head FROM {schema}.head h WHERE h.topic_id = s.topic_id FOR UPDATE;
    -- Read again under the locks.
    s := {schema}.find_subscription(p_topic, p_group);
    IF s.state = 'cancelled' THEN
        state := 'cancelled';
        RETURN;
    END IF;
    SELECT c.next_offset INTO STRICT v_next FROM {schema}.cursor c
    WHERE c.subscription_id = s.subscription_id AND c.lane = coalesce(p_lane, 0) FOR UPDATE;
    -- Only a settlement can change the range meanwhile: until it commits, a new query finds the row it splits, and afterwards the rows
    -- it inserted. All rows of the token are locked.
    LOOP
        SELECT o.token INTO v_token FROM {schema}.outstanding o
        WHERE o.subscription_id = s.subscription_id AND o.lane IS NOT DISTINCT FROM p_lane AND p_offset BETWEEN o.first_offset AND o.last_offset;
        EXIT WHEN NOT FOUND;
        PERFORM {schema}.lock_leases(ARRAY[v_token]);
        SELECT o.* INTO r FROM {schema}.outstanding o WHERE o.token = v_token AND p_offset BETWEEN o.first_offset AND o.last_offset;
        EXIT WHEN FOUND;
    END LOOP;
    state := CASE WHEN r.owner IS NOT NULL AND r.due_at > v_now THEN 'leased'
                  WHEN r.parked THEN 'parked'
                  WHEN r.token IS NOT NULL THEN 'waiting'
                  WHEN p_offset > v_head THEN 'not_final'
                  WHEN p_offset >= v_next THEN 'not_handed_out'
                  WHEN EXISTS (SELECT FROM {schema}.dead_letter d WHERE d.subscription_id = s.subscription_id
                               AND d.message_offset = p_offset) THEN 'buried'
                  ELSE 'done' END;
    IF NOT state = ANY (p_from) THEN
        RETURN;
    END IF;
    IF state = 'leased' THEN
        -- The whole lease ends, as if its owner had released it.
        v_owner := r.owner;
        UPDATE {schema}.outstanding o SET token = {schema}.new_token(), owner = NULL, due_at = '-infinity' WHERE o.token = v_token;
        SELECT o.* INTO STRICT r FROM {schema}.outstanding o
        WHERE o.subscription_id = s.subscription_id AND o.lane IS NOT DISTINCT FROM p_lane AND p_offset BETWEEN o.first_offset AND o.last_offset;
    END IF;
    IF r.token IS NOT NULL THEN
        DELETE FROM {schema}.outstanding o WHERE o.token = r.token AND o.first_offset = r.first_offset;
        INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, attempts, lane, suspect, parked, owner,
                                          key, last_error)
        SELECT {schema}.new_token(), lower(g), upper(g) - 1, r.due_at, r.subscription_id, r.attempts, r.lane, r.suspect, r.parked,
               r.owner, r.key, r.last_error
        FROM unnest({schema}.span(r.first_offset, r.last_offset) - {schema}.span(p_offset, p_offset)) g;
    ELSE
        INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, lane)
        SELECT {schema}.new_token(), lower(g), upper(g) - 1, '-infinity', s.subscription_id, p_lane
        FROM unnest({schema}.span(v_next, p_offset - 1) - {schema}.gaps(s.topic_id) - coalesce(
            (SELECT range_agg(int8range(h.first_offset, h.last_offset, '[]')) FROM {schema}.hole h WHERE h.topic_id = s.topic_id), '{}')) g;
        UPDATE {schema}.cursor c SET next_offset = p_offset + 1
        WHERE c.subscription_id = s.subscription_id AND c.lane = coalesce(p_lane, 0);
    END IF;
    IF p_act = 'bury_message' THEN
        PERFORM {schema}.bury_range(s.subscription_id, s.topic_id, p_offset, p_offset,
                              coalesce(r.attempts, 0) + (v_owner IS NOT NULL)::integer, p_reason, NULL, v_now);
    ELSIF p_act = 'retry_message' THEN
        INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, attempts, lane, suspect, parked, owner,
                                          key, last_error)
        VALUES ({schema}.new_token(), p_offset, p_offset, '-infinity', r.subscription_id, r.attempts, r.lane, r.suspect, false, NULL, r.key,
                r.last_error);
    END IF;
    PERFORM {schema}.note_act(p_actor, p_act, p_topic, p_group, jsonb_build_object('offset', p_offset, 'from', state, 'owner', v_owner), v_now);
    PERFORM {schema}.wake(s.topic_id, true, true);
    changed := true;
END $$;
