-- Claiming for one subscription without lanes and limits where nothing is due again and no gap is in the way: the common case, in
-- as few statements as possible.

-- A lease, or a recheck where no message waits. Null where the subscription needs the slow path (functions/claim.sql).
CREATE OR REPLACE FUNCTION {schema}.claim_fast(
    p_owner text, p_subscription_id integer, p_messages_max integer, p_lease_ms bigint, p_rows_max integer,
    p_clock timestamptz, p_now timestamptz
) RETURNS {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id integer;
    v_lease_ms bigint;
    v_due_since timestamptz;
    v_next bigint;
    v_head bigint;
    -- Where the head may go; the last offset that was taken from the sequence.
    v_top bigint;
    v_last bigint;
    v_gaps_until bigint;
    v_gaps_seen pg_snapshot;
    v_gaps_bound xid8;
    v_may_move boolean;
    v_stuck boolean;
    v_clear boolean;
    v_row {schema}.claimed;
BEGIN
    -- These reads lock nothing and give the transaction no xid.
    SELECT c.topic_id, c.next_offset, t.lease_ms, {schema}.due_since(c.due_from, p_now), h.head,
           h.gaps_until, h.gaps_seen, h.gaps_bound, h.stuck_at IS NULL AND t.storage = 'shared', h.stuck_at IS NOT NULL,
           coalesce(pg_sequence_last_value(t.offsets), 0),
           c.next_offset > greatest(h.gaps_until, h.holes_until)
           AND NOT {schema}.gaps_due(h.gaps_until, h.gaps_checked_at, h.gaps_seen, h.gaps_bound, p_clock)
    INTO v_topic_id, v_next, v_lease_ms, v_due_since, v_head, v_gaps_until, v_gaps_seen, v_gaps_bound, v_may_move, v_stuck, v_last, v_clear
    FROM {schema}.cursor c
    CROSS JOIN LATERAL (SELECT y.head, y.gaps_until, y.gaps_seen, y.gaps_bound, y.gaps_checked_at, y.holes_until, y.stuck_at
                        FROM {schema}.head y WHERE y.topic_id = c.topic_id ORDER BY y.era LIMIT 1) h
    JOIN {schema}.topic t ON t.topic_id = c.topic_id
    WHERE c.subscription_id = p_subscription_id AND c.lane = 0 AND NOT c.ordered AND c.active
    ORDER BY c.era LIMIT 1;
    IF v_clear IS NOT TRUE
       OR EXISTS (SELECT FROM {schema}.schedule d WHERE d.topic_id = v_topic_id AND d.deliver_at <= p_now)
       OR EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id
                  AND o.suspect AND o.owner = p_owner AND o.due_at > p_now)
       OR {schema}.any_due(p_subscription_id, v_due_since, p_now, true) THEN
        RETURN NULL;
    END IF;
    v_top := v_head;
    IF v_may_move AND v_last > v_head AND v_next + p_messages_max > v_head + 1 THEN
        -- If no offset is missing up to the last message, and as of the same snapshot no transaction has ended that may own a row in a
        -- noted gap, the head may go there (see functions/head.sql). Bounded, for a transaction of a million publishes; the slow path
        -- then notes that the head is stuck, and this query is not run again.
        SELECT CASE WHEN count(*) = max(m.message_offset) - v_head
                         AND (v_gaps_until = 0 OR {schema}.first_ended(v_gaps_seen, pg_current_snapshot()) >= v_gaps_bound)
                    THEN max(m.message_offset) ELSE v_head END
        INTO v_top
        FROM {schema}.shared_messages(v_topic_id, v_head + 1,
            v_head + least(p_rows_max, greatest(1000, v_next + p_messages_max - v_head))) m;
    END IF;
    IF v_gaps_until = 0 AND NOT v_stuck AND v_next > v_head AND v_last = v_head THEN
        -- No message waits: the head is at the last offset taken, which was read after the flag of the waiting process was raised
        -- (see "wake"). Nothing is handed out, so operators need not be held off.
        RETURN {schema}.recheck(p_subscription_id, v_topic_id,
            {schema}.recheck_ms(p_subscription_id, v_topic_id, v_due_since, p_now));
    END IF;
    IF (v_next <= v_top AND (v_top > v_head OR v_last = v_head OR v_next + p_messages_max <= v_head + 1)) IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    -- The cursor shows whether the subscription is active: a locked row is read again, in its newest version, after a
    -- pause committed. So is the head, where it is moved: a gap that another process noted meanwhile is above v_head, and ends
    -- the fast path.
    IF v_top > v_head THEN
        -- Other groups need the head, so a claim that has locked it waits for no cursor; the statement below finds it locked.
        WITH ahead AS MATERIALIZED (
            SELECT FROM {schema}.head e
            WHERE e.topic_id = v_topic_id AND e.gaps_until = v_gaps_until AND e.stuck_at IS NULL
              AND e.era <= (SELECT y.era FROM {schema}.head y WHERE y.topic_id = v_topic_id ORDER BY y.era LIMIT 1)
            FOR UPDATE SKIP LOCKED
        ), above AS MATERIALIZED (
            SELECT FROM {schema}.cursor c
            WHERE EXISTS (SELECT FROM ahead)
              AND c.subscription_id = p_subscription_id AND c.lane = 0 AND c.active
              AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = p_subscription_id AND x.lane = 0
                            ORDER BY x.era LIMIT 1)
              AND c.next_offset BETWEEN v_next AND v_top
            FOR UPDATE SKIP LOCKED
        )
        UPDATE {schema}.head e SET head = greatest(e.head, v_top), moves = e.moves + 1, era = -((e.moves + 1) / 64)
        FROM above
        WHERE e.topic_id = v_topic_id
          AND e.era <= (SELECT y.era FROM {schema}.head y WHERE y.topic_id = v_topic_id ORDER BY y.era LIMIT 1);
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    WITH was AS MATERIALIZED (
        SELECT c.next_offset, c.lease_ms FROM {schema}.cursor c
        WHERE c.subscription_id = p_subscription_id AND c.lane = 0 AND c.active
          AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = p_subscription_id AND x.lane = 0
                        ORDER BY x.era LIMIT 1)
          AND c.next_offset BETWEEN v_next AND v_top
          AND (v_top > v_head OR v_last = v_head OR c.next_offset + p_messages_max <= v_top + 1)
        FOR UPDATE
    ), moved AS (
        UPDATE {schema}.cursor c
        SET next_offset = least(was.next_offset + p_messages_max, v_top + 1), due_from = p_now - interval '200 ms',
            moves = c.moves + 1, era = -((c.moves + 1) / 64)
        FROM was
        WHERE c.subscription_id = p_subscription_id AND c.lane = 0
          AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = p_subscription_id AND x.lane = 0
                        ORDER BY x.era LIMIT 1)
        RETURNING was.next_offset AS first, c.next_offset - 1 AS last, coalesce(p_lease_ms, was.lease_ms, v_lease_ms) AS lease_ms
    ), leased AS (
        INSERT INTO {schema}.outstanding AS o (token, first_offset, last_offset, due_at, subscription_id, owner)
        SELECT {schema}.new_token(), m.first, m.last, {schema}.deadline(m.lease_ms, p_now), p_subscription_id, p_owner
        FROM moved m
        RETURNING o.token, o.first_offset, o.last_offset, o.due_at
    )
    SELECT 'lease', p_subscription_id, v_topic_id, l.token, l.first_offset, l.last_offset, 1, l.due_at, false, NULL, NULL, NULL, NULL,
           NULL
    INTO v_row FROM leased l;
    RETURN v_row;
END $$;
