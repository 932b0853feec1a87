-- Limits of a group, over all processes. Claims without limits and settlements use none of this: messages in flight are counted
-- in "outstanding", under a lock of the group's row in "group_rate". Every limited claim takes that lock before any row or cursor
-- of the subscription, and only if there is something to hand out. Only claims lock this row: heartbeats and registrations do not
-- wait for a busy group. A claim that is limited is repeated a little later; docs/decisions/0011 explains why no process is
-- woken.

-- How many messages a span of offsets counts as: in an ordered subscription one in p_lanes belongs to the lane.
CREATE OR REPLACE FUNCTION {schema}.messages_in(p_span bigint, p_lanes integer) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT (p_span + greatest(p_lanes, 1) - 1) / greatest(p_lanes, 1) $$;

-- What the limits of a want allow at this moment: free messages in flight, tokens in the bucket, and the smaller of them in "room".
CREATE OR REPLACE FUNCTION {schema}.measure(p_want {schema}.want, p_now timestamptz) RETURNS {schema}.want
LANGUAGE plpgsql AS $$
DECLARE
    w {schema}.want := p_want;
BEGIN
    -- Read here, not when the claim began: it may have waited for the lock, and time must not go back from one claim to
    -- the next.
    w.filled_at := coalesce(p_now, clock_timestamp());
    IF w.in_flight_max IS NOT NULL THEN
        SELECT greatest(w.in_flight_max - coalesce(sum(l.messages), 0), 0) INTO w.free
        FROM (SELECT {schema}.messages_in(sum(o.last_offset - o.first_offset + 1)::bigint, w.lanes) AS messages
              FROM {schema}.outstanding o
              WHERE o.subscription_id = w.subscription_id AND o.due_at > w.filled_at AND o.owner IS NOT NULL
              GROUP BY o.token) l;
    END IF;
    IF w.rate IS NOT NULL THEN
        -- A clock that stepped back adds and removes nothing, and from now on the bucket fills again.
        SELECT g.tokens + greatest(extract(epoch FROM w.filled_at - g.filled_at)::double precision, 0) * w.rate,
               g.filled_at > w.filled_at
        INTO w.tokens, w.turned_back FROM {schema}.group_rate g WHERE g.subscription_id = w.subscription_id;
        -- Full if never used.
        w.tokens := least(w.tokens, w.burst);
    END IF;
    -- A token this close to whole counts as whole: 100 ms at ten per second must be one message despite binary fractions.
    w.room := least(w.messages_max, w.free, floor(w.tokens + 1e-9)::bigint);
    RETURN w;
END $$;

-- Reduces a want to what its limits allow. If they allow nothing it takes no lock: many claims may check at once.
CREATE OR REPLACE FUNCTION {schema}.allow(p_want {schema}.want, p_now timestamptz) RETURNS {schema}.want
LANGUAGE plpgsql AS $$
DECLARE
    w {schema}.want := {schema}.measure(p_want, p_now);
BEGIN
    IF w.room > 0 OR w.turned_back THEN
        PERFORM FROM {schema}.group_rate g WHERE g.subscription_id = w.subscription_id FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO {schema}.group_rate (subscription_id) VALUES (w.subscription_id) ON CONFLICT (subscription_id) DO NOTHING;
            PERFORM FROM {schema}.group_rate g WHERE g.subscription_id = w.subscription_id FOR UPDATE;
        END IF;
        w := {schema}.measure(p_want, p_now);
    END IF;
    w.messages_max := w.room;
    RETURN w;
END $$;

-- Whether the head is beyond a cursor of a subscription.
CREATE OR REPLACE FUNCTION {schema}.is_behind(p_want {schema}.want) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM generate_series(0, greatest(p_want.lanes, 1) - 1) AS l (lane)
        CROSS JOIN LATERAL (SELECT q.next_offset FROM {schema}.cursor q WHERE q.subscription_id = p_want.subscription_id
                            AND q.lane = l.lane ORDER BY q.era LIMIT 1) c
        WHERE c.next_offset <= (SELECT h.head FROM {schema}.head h WHERE h.topic_id = p_want.topic_id ORDER BY h.era LIMIT 1));
END $$;

-- Takes tokens for the messages handed out. If a limit is reached and more could be handed out, returns after how many milliseconds
-- to claim again; null otherwise.
CREATE OR REPLACE FUNCTION {schema}.spend(p_want {schema}.want, p_given bigint, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_tokens double precision := p_want.tokens - p_given;
    v_held_ms bigint;
BEGIN
    IF p_given > 0 OR p_want.turned_back THEN
        INSERT INTO {schema}.group_rate AS g (subscription_id, tokens, filled_at)
        SELECT p_want.subscription_id, v_tokens, p_want.filled_at WHERE p_want.rate IS NOT NULL
        ON CONFLICT (subscription_id) DO UPDATE SET tokens = excluded.tokens, filled_at = excluded.filled_at;
    END IF;
    v_held_ms := greatest(
        CASE WHEN v_tokens + 1e-9 < 1 THEN greatest(ceil((1 - v_tokens) / p_want.rate * 1000 - 1e-6), 1) END,
        CASE WHEN p_want.free <= p_given THEN 25 END);
    IF v_held_ms IS NOT NULL AND (
            {schema}.any_due(p_want.subscription_id, p_want.due_since, p_now, false) OR {schema}.is_behind(p_want)) THEN
        RETURN v_held_ms;
    END IF;
    RETURN NULL;
END $$;
