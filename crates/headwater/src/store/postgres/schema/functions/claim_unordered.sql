-- Claiming for subscriptions without lanes, and what lanes use of it.

-- A row for the log: an expired hand-out, or a message buried for it.
CREATE OR REPLACE FUNCTION {schema}.note(p_kind text, r {schema}.outstanding, p_detail text) RETURNS {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id integer;
    v_names text[];
BEGIN
    SELECT t.topic_id, ARRAY[t.name, s.group_name] INTO v_topic_id, v_names
    FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
    WHERE s.subscription_id = r.subscription_id;
    RETURN ROW(p_kind, r.subscription_id, v_topic_id, r.token, r.first_offset, r.last_offset, r.attempts + 1, NULL, true,
               r.lane, NULL, NULL, v_names, p_detail)::{schema}.claimed;
END $$;

-- From when on a claim has to search for due ranges. Entries of settled leases stay in the index until vacuum removes them, which an
-- old snapshot prevents: a search from the beginning would visit one for each earlier claim. So a claim that found nothing
-- due stores the time of its search in the cursor (due_from). The next one searches from there on, and at '-infinity', where released
-- ranges, late messages and leases of dead owners are.
--
-- A range may appear below: its transaction read the clock, wrote a due time, and committed after a later claim had searched.
-- So the last 200 ms before a search count as not searched, and the first claim of every five seconds searches from the
-- beginning. A range whose commit took longer is handed out late by five seconds at most, or by the fifteen of the safety
-- poll where nothing else is claimed, and never lost. A clock that was set back makes the claim search from the beginning, too.
CREATE OR REPLACE FUNCTION {schema}.due_since(p_due_from timestamptz, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_due_from + interval '200 ms' BETWEEN date_bin('5 seconds', p_now, 'epoch') AND p_now
                THEN p_due_from ELSE '-infinity' END
$$;

-- Takes up to p_max new offsets for a cursor that the caller has locked: [first, last], or nulls. functions/head.sql says why
-- a gap in the way is read under a share lock. The lock is never waited for: the claim may hold another topic's head. "more" is set
-- where a gap or a hole ended the range. p_due_from is stored in the cursor unless it is null.
CREATE OR REPLACE FUNCTION {schema}.take_next(
    p_topic_id integer, p_subscription_id integer, p_lane integer, p_next bigint, p_max bigint, p_due_from timestamptz,
    OUT first_offset bigint, OUT last_offset bigint, OUT skipped boolean, OUT more boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    v_head bigint;
    v_gaps_until bigint;
    v_holes_until bigint;
    v_gap bigint;
BEGIN
    skipped := false;
    more := false;
    SELECT h.head, h.gaps_until, h.holes_until INTO v_head, v_gaps_until, v_holes_until
    FROM {schema}.head h WHERE h.topic_id = p_topic_id ORDER BY h.era LIMIT 1;
    IF p_next > v_head THEN
        RETURN;
    END IF;
    first_offset := p_next;
    IF p_next <= v_holes_until THEN
        -- Nothing ever comes in a hole, so it is passed without a lock.
        SELECT coalesce(max(x.last_offset) + 1, p_next) INTO first_offset FROM {schema}.hole x
        WHERE x.topic_id = p_topic_id AND x.first_offset <= p_next AND x.last_offset >= p_next;
        SELECT min(x.first_offset) - 1 INTO v_gap FROM {schema}.hole x
        WHERE x.topic_id = p_topic_id AND x.first_offset > take_next.first_offset;
    END IF;
    last_offset := least(first_offset + p_max - 1, v_head, v_gap);
    IF first_offset <= v_gaps_until AND EXISTS (
            SELECT FROM {schema}.gap g WHERE g.topic_id = p_topic_id
            AND g.first_offset <= take_next.last_offset AND g.last_offset >= take_next.first_offset) THEN
        SELECT h.head INTO v_head FROM {schema}.head h WHERE h.topic_id = p_topic_id
          AND h.era <= (SELECT y.era FROM {schema}.head y WHERE y.topic_id = p_topic_id ORDER BY y.era LIMIT 1)
        FOR SHARE SKIP LOCKED;
        IF NOT FOUND THEN
            first_offset := NULL;
            last_offset := NULL;
            skipped := true;
            RETURN;
        END IF;
        LOOP
            SELECT g.last_offset + 1 INTO v_gap FROM {schema}.gap g
            WHERE g.topic_id = p_topic_id AND g.first_offset <= take_next.first_offset AND g.last_offset >= take_next.first_offset;
            EXIT WHEN NOT FOUND;
            first_offset := v_gap;
        END LOOP;
        last_offset := least(first_offset + p_max - 1, v_head);
        SELECT min(g.first_offset) - 1 INTO v_gap FROM {schema}.gap g
        WHERE g.topic_id = p_topic_id AND g.first_offset > take_next.first_offset AND g.first_offset <= take_next.last_offset;
        last_offset := least(last_offset, v_gap);
    END IF;
    UPDATE {schema}.cursor c
    SET next_offset = greatest(take_next.first_offset, take_next.last_offset + 1), due_from = coalesce(p_due_from, c.due_from),
        moves = c.moves + 1, era = -((c.moves + 1) / 64)
    WHERE c.subscription_id = p_subscription_id AND c.lane = p_lane
      AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = p_subscription_id AND x.lane = p_lane
                    ORDER BY x.era LIMIT 1);
    IF first_offset > last_offset THEN
        -- Only a gap was there. The cursor is past it; what comes in it will come late.
        first_offset := NULL;
        last_offset := NULL;
    END IF;
    more := v_gap IS NOT NULL;
END $$;

-- One subscription without lanes. See docs/decisions for why a suspect range travels alone.
CREATE OR REPLACE FUNCTION {schema}.claim_unordered(p_want {schema}.want, p_owner text, p_deadline timestamptz, p_now timestamptz)
RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.outstanding;
    v_left bigint := p_want.messages_max;
    v_take bigint;
    v_next bigint;
    v_lease record;
BEGIN
    IF p_want.has_due THEN
        FOR r IN SELECT d.* FROM (VALUES (true, '-infinity'::timestamptz, '-infinity'::timestamptz),
                                         (false, p_want.due_since, p_now)) AS span (at_once, since, until)
                 CROSS JOIN LATERAL (
                     SELECT o.* FROM {schema}.outstanding o
                     WHERE o.subscription_id = p_want.subscription_id AND o.due_at BETWEEN span.since AND span.until
                       AND (span.at_once OR o.due_at > '-infinity')
                     ORDER BY o.due_at, o.first_offset LIMIT p_want.messages_max FOR UPDATE SKIP LOCKED) d
        LOOP
            IF r.owner IS NOT NULL THEN
                RETURN NEXT {schema}.note('expired', r, r.owner);
                r := {schema}.expire(r, p_want.max_attempts);
            END IF;
            v_take := least(r.last_offset - r.first_offset + 1, v_left);
            IF r.suspect THEN
                v_take := {schema}.hand_out_again(r.last_offset - r.first_offset + 1, r.attempts, p_want.max_attempts);
                IF v_take = 0 THEN
                    RETURN NEXT {schema}.bury_suspect(r, p_want.topic_id, p_now);
                    CONTINUE;
                END IF;
                -- Alone: not with what this claim gave already, nor with anything else the owner holds.
                IF v_left < p_want.messages_max OR EXISTS (SELECT FROM {schema}.outstanding o
                        WHERE o.subscription_id = p_want.subscription_id AND o.owner = p_owner AND o.due_at > p_now) THEN
                    RETURN;
                END IF;
                v_take := least(v_take, v_left);
            END IF;
            r := {schema}.lease_row(r, v_take, p_owner, p_deadline);
            v_left := v_left - v_take;
            RETURN NEXT ROW('lease', p_want.subscription_id, p_want.topic_id, r.token, r.first_offset, r.last_offset,
                            r.attempts + 1, r.due_at, r.suspect, NULL, NULL, NULL, NULL, NULL)::{schema}.claimed;
            IF v_left = 0 OR r.suspect THEN
                RETURN;
            END IF;
        END LOOP;
    END IF;
    -- The cursor is locked only where the head is beyond it: a claim that finds nothing writes nothing and gets no xid.
    SELECT c.next_offset INTO v_next FROM {schema}.cursor c
    WHERE c.subscription_id = p_want.subscription_id AND c.lane = 0
      AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = p_want.subscription_id AND x.lane = 0
                    ORDER BY x.era LIMIT 1)
      AND c.next_offset <= (SELECT h.head FROM {schema}.head h WHERE h.topic_id = p_want.topic_id ORDER BY h.era LIMIT 1)
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- No range covers an offset that may still come. Between gaps there may be one message each: so several ranges are given.
    FOR i IN 1..100 LOOP
        SELECT NULL::bigint AS token, n.first_offset, n.last_offset, n.skipped, n.more INTO v_lease
        FROM {schema}.take_next(p_want.topic_id, p_want.subscription_id, 0, v_next, v_left, p_want.due_from) n;
        IF v_lease.first_offset IS NOT NULL THEN
            v_lease.token := {schema}.new_token();
            INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, owner)
            VALUES (v_lease.token, v_lease.first_offset, v_lease.last_offset, p_deadline, p_want.subscription_id, p_owner);
            RETURN NEXT ROW('lease', p_want.subscription_id, p_want.topic_id, v_lease.token, v_lease.first_offset,
                            v_lease.last_offset, 1, p_deadline, false, NULL, NULL, NULL, NULL, NULL)::{schema}.claimed;
            v_next := v_lease.last_offset + 1;
            v_left := v_left - (v_lease.last_offset - v_lease.first_offset + 1);
        ELSIF v_lease.skipped THEN
            RETURN NEXT {schema}.recheck(p_want.subscription_id, p_want.topic_id, 1);
        END IF;
        EXIT WHEN v_lease.first_offset IS NULL OR NOT v_lease.more OR v_left = 0;
    END LOOP;
END $$;

-- Leases the next offsets to wants that are plain: without lanes and limits, with nothing due, and behind no gap or hole. One statement
-- for all of them: a process with many groups claims for all at once. A want that gets nothing gets a recheck; p_recheck_ms as in
-- serve_want.
--
-- A gap that is recorded later is above the head that this statement reads, and a cursor above gaps_until and holes_until has none
-- before it. So it may take everything up to that head, also where the statement waited for the cursor and found it moved: the
-- conditions are then checked again with its new offset (see functions/head.sql).
CREATE OR REPLACE FUNCTION {schema}.lease_next(p_wants {schema}.want[], p_owner text, p_recheck_ms bigint, p_now timestamptz)
RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    v_row {schema}.claimed;
    v_leased integer[] := '{}';
BEGIN
    FOR v_row IN
        WITH was AS MATERIALIZED (
            SELECT w.subscription_id, w.topic_id, w.messages_max, w.lease_ms, c.next_offset, h.head
            FROM unnest(p_wants) w
            CROSS JOIN LATERAL (SELECT y.head, greatest(y.gaps_until, y.holes_until) AS clear_above FROM {schema}.head y
                                WHERE y.topic_id = w.topic_id ORDER BY y.era LIMIT 1) h
            JOIN {schema}.cursor c ON c.subscription_id = w.subscription_id AND c.lane = 0
            WHERE c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = w.subscription_id AND x.lane = 0
                            ORDER BY x.era LIMIT 1)
              AND c.next_offset > h.clear_above AND c.next_offset <= h.head
            ORDER BY w.subscription_id
            FOR UPDATE OF c
        ), moved AS (
            UPDATE {schema}.cursor c
            SET next_offset = least(was.next_offset + was.messages_max, was.head + 1), due_from = p_now - interval '200 ms',
                moves = c.moves + 1, era = -((c.moves + 1) / 64)
            FROM was
            WHERE c.subscription_id = was.subscription_id AND c.lane = 0
              AND c.era <= (SELECT x.era FROM {schema}.cursor x WHERE x.subscription_id = was.subscription_id AND x.lane = 0
                            ORDER BY x.era LIMIT 1)
            RETURNING was.subscription_id, was.topic_id, was.lease_ms, was.next_offset AS first_offset, c.next_offset - 1 AS last_offset
        ), leased AS (
            INSERT INTO {schema}.outstanding AS o (token, first_offset, last_offset, due_at, subscription_id, owner)
            SELECT {schema}.new_token(), m.first_offset, m.last_offset, {schema}.deadline(m.lease_ms, p_now), m.subscription_id, p_owner
            FROM moved m
            RETURNING o.subscription_id, o.token, o.first_offset, o.last_offset, o.due_at
        )
        SELECT 'lease', l.subscription_id, m.topic_id, l.token, l.first_offset, l.last_offset, 1, l.due_at, false, NULL::integer,
               NULL::text[], NULL::bigint, NULL::text[], NULL::text
        FROM leased l JOIN moved m ON m.subscription_id = l.subscription_id
        ORDER BY l.subscription_id
    LOOP
        v_leased := v_leased || v_row.subscription_id;
        RETURN NEXT v_row;
    END LOOP;
    IF cardinality(v_leased) < cardinality(p_wants) THEN
        -- Behind the head all the same: a gap was recorded, or a hole, after the want was weighed.
        RETURN QUERY SELECT r.* FROM unnest(p_wants) w
            CROSS JOIN LATERAL {schema}.recheck(w.subscription_id, w.topic_id, CASE WHEN {schema}.is_behind(w) THEN 1 ELSE coalesce(
                p_recheck_ms, {schema}.recheck_ms(w.subscription_id, w.topic_id, w.due_since, p_now)) END) r
            WHERE w.subscription_id <> ALL (v_leased);
    END IF;
END $$;
