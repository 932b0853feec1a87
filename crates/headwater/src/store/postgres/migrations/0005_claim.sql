-- Claiming: first what is due again, else the next offsets up to the head.

-- Begins an epoch unless there is one. Called for every new session of a store, so before anything is published through it,
-- and by a claim that finds none. The lock lets readers through; of many that call at once one begins, and the others find it
-- begun.
CREATE FUNCTION {schema}.begin_epoch(OUT epoch bigint, OUT cause text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_copied boolean;
    v_timeline text := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
    v_before text;
BEGIN
    FOR i IN 1..2 LOOP
        SELECT e.epoch INTO epoch FROM {schema}.epoch e WHERE e.made_by = e.xmin;
        IF FOUND THEN
            SELECT h.cause INTO cause FROM {schema}.epoch_history h WHERE h.epoch = begin_epoch.epoch;
            RETURN;
        END IF;
        -- Nothing waits for a standby here: there may be none yet, and a lost epoch is begun again.
        PERFORM set_config('synchronous_commit', 'local', true);
        LOCK TABLE {schema}.epoch IN EXCLUSIVE MODE;
    END LOOP;
    v_copied := EXISTS (SELECT FROM {schema}.epoch);
    SELECT h.timeline INTO v_before FROM {schema}.epoch_history h ORDER BY h.began_at DESC LIMIT 1;
    cause := CASE WHEN v_before IS NULL THEN 'created' WHEN v_copied THEN 'restore'
                  WHEN v_before <> v_timeline THEN 'failover' ELSE 'crash' END;
    epoch := {schema}.new_token();
    DELETE FROM {schema}.epoch;
    INSERT INTO {schema}.epoch (epoch) VALUES (begin_epoch.epoch);
    UPDATE {schema}.epoch e SET made_by = e.xmin;
    INSERT INTO {schema}.epoch_history (epoch, began_at, cause, timeline)
    VALUES (begin_epoch.epoch, clock_timestamp(), begin_epoch.cause, v_timeline);
    IF cause = 'created' THEN
        PERFORM setval('{schema}.offsets_timeline', ('x' || v_timeline)::bit(32)::bigint);
    ELSE
        IF cause = 'restore' THEN
            -- A dump brings the value of another server, or of an earlier time, and snapshots too.
            PERFORM setval('{schema}.offsets_timeline', 1, false);
            UPDATE {schema}.head h SET gaps_seen = NULL, empty_seen = NULL WHERE h.gaps_seen IS NOT NULL OR h.empty_seen IS NOT NULL;
        END IF;
        PERFORM {schema}.pass_lost_offsets();
    END IF;
END $$;

SELECT {schema}.begin_epoch();

-- What a claim returns. kind: lease; expired (for the log: owner and range that ran out); buried (likewise); recheck
-- (recheck_ms until claiming again may find something though nobody publishes); inactive (owner is the state).
CREATE TYPE {schema}.claimed AS (
    kind text, subscription_id integer, topic_id integer, token bigint, first_offset bigint, last_offset bigint,
    attempt integer, deadline timestamptz, suspect boolean, lane integer, blocked_keys text[], owner text, recheck_ms bigint
);

-- The row that tells when to look again.
CREATE FUNCTION {schema}.recheck(p_subscription_id integer, p_topic_id integer, p_recheck_ms bigint) RETURNS {schema}.claimed
LANGUAGE plpgsql AS $$
BEGIN
    RETURN ROW('recheck', p_subscription_id, p_topic_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
               p_recheck_ms)::{schema}.claimed;
END $$;

-- A row for the log: an expired hand-out, or a message buried for it. blocked_keys carries the topic's and group's names.
CREATE FUNCTION {schema}.note(p_kind text, r {schema}.outstanding, p_detail text) RETURNS {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id integer;
    v_names text[];
BEGIN
    SELECT t.topic_id, ARRAY[t.name, s.group_name] INTO v_topic_id, v_names
    FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
    WHERE s.subscription_id = r.subscription_id;
    RETURN ROW(p_kind, r.subscription_id, v_topic_id, r.token, r.first_offset, r.last_offset, r.attempts + 1, NULL, true,
               r.lane, v_names, p_detail, NULL)::{schema}.claimed;
END $$;

-- Copies the messages of a range to the dead letters. The caller removes the range in the same transaction.
CREATE FUNCTION {schema}.bury(
    p_subscription_id integer, p_topic_id integer, p_first bigint, p_last bigint, p_attempts integer, p_error text,
    p_now timestamptz
) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO {schema}.dead_letter (subscription_id, topic_id, message_offset, message_id, key, message_type, payload,
                                      content_type, headers, correlation_id, created_at, error, attempts, buried_at)
    SELECT p_subscription_id, p_topic_id, m.message_offset, m.message_id, m.key, m.message_type, m.payload,
           m.content_type, m.headers, m.correlation_id, m.created_at, p_error, p_attempts, p_now
    FROM {schema}.message m WHERE m.topic_id = p_topic_id AND m.message_offset BETWEEN p_first AND p_last
$$;

-- Marks an expired lease: it counts as an attempt, and its range is suspect from now on. Only a single message may use
-- up its last attempt: a neighbour must never be buried for it. Rows of an old token get a new one.
CREATE FUNCTION {schema}.expire(p_row {schema}.outstanding, p_max_attempts integer) RETURNS {schema}.outstanding
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.outstanding := p_row;
BEGIN
    r.attempts := CASE WHEN r.first_offset = r.last_offset THEN r.attempts + 1
                       ELSE greatest(least(r.attempts + 1, p_max_attempts - 1), 0) END;
    r.suspect := true;
    r.last_error := 'lease expired: held by ' || r.owner;
    r.owner := NULL;
    r.due_at := '-infinity';
    r.token := {schema}.new_token();
    UPDATE {schema}.outstanding o
    SET token = r.token, attempts = r.attempts, suspect = true, last_error = r.last_error, owner = NULL, due_at = r.due_at
    WHERE o.token = p_row.token AND o.first_offset = p_row.first_offset;
    UPDATE {schema}.subscription s SET reassigned = s.reassigned + 1 WHERE s.subscription_id = r.subscription_id;
    RETURN r;
END $$;

-- Buries a suspect message that has used up its attempts; says so to the log.
CREATE FUNCTION {schema}.bury_suspect(r {schema}.outstanding, p_topic_id integer, p_now timestamptz) RETURNS {schema}.claimed
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.bury(r.subscription_id, p_topic_id, r.first_offset, r.last_offset, r.attempts,
                          format('lease expired %s times; last %s', r.attempts, r.last_error), p_now);
    DELETE FROM {schema}.outstanding o WHERE o.token = r.token AND o.first_offset = r.first_offset;
    RETURN {schema}.note('buried', r, r.last_error);
END $$;

-- How many offsets of a suspect range to hand out: half, and one alone for the last attempt; 0 means bury it.
CREATE FUNCTION {schema}.hand_out_again(p_span bigint, p_attempts integer, p_max_attempts integer) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_span = 1 AND p_attempts >= p_max_attempts THEN 0
                WHEN p_attempts + 1 >= p_max_attempts THEN 1
                ELSE (p_span + 1) / 2 END
$$;

-- Leases the first p_take offsets of a waiting row to an owner; the rest stays waiting under a token of its own.
CREATE FUNCTION {schema}.lease_row(p_row {schema}.outstanding, p_take bigint, p_owner text, p_deadline timestamptz)
RETURNS {schema}.outstanding
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.outstanding := p_row;
BEGIN
    r.last_offset := p_row.first_offset + p_take - 1;
    r.token := {schema}.new_token();
    r.owner := p_owner;
    r.due_at := p_deadline;
    r.parked := false;
    UPDATE {schema}.outstanding o
    SET token = r.token, last_offset = r.last_offset, owner = r.owner, due_at = r.due_at, parked = false
    WHERE o.token = p_row.token AND o.first_offset = p_row.first_offset;
    IF r.last_offset < p_row.last_offset THEN
        INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, attempts, lane,
                                          suspect, parked, owner, key, last_error)
        VALUES ({schema}.new_token(), r.last_offset + 1, p_row.last_offset, '-infinity', r.subscription_id,
                r.attempts, r.lane, r.suspect, p_row.parked, NULL, r.key, r.last_error);
    END IF;
    RETURN r;
END $$;

-- From when on a claim has to look for due ranges. Entries of settled leases stay in the index until vacuum removes them, which an
-- old snapshot prevents: looking from the beginning would visit one for each claim there was. So a claim that found nothing
-- due notes in the cursor that it looked (due_from), and the next one looks from there on, and at '-infinity', where released
-- ranges, late rows and leases of dead owners are.
--
-- A range may appear below: its transaction read the clock, wrote a due time, and was committed after a later claim had looked.
-- So a fifth of a second before the look counts as not looked at, and the first claim of every five seconds looks from the
-- beginning: a range whose commit took longer than that is handed out late by five seconds at most, or by the fifteen of the safety
-- poll where nothing else is claimed, and never lost. A clock
-- that was set back makes it look from the beginning, too.
CREATE FUNCTION {schema}.due_since(p_due_from timestamptz, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_due_from + interval '200 ms' BETWEEN date_bin('5 seconds', p_now, 'epoch') AND p_now
                THEN p_due_from ELSE '-infinity' END
$$;

-- Takes up to p_max new offsets for a cursor that the caller has locked: [first, last], or nulls. See 0004_head for why
-- a gap in the way is met under a share lock. It is never waited for: the claim may hold another topic's head. "more" is set where
-- a gap or a hole ended the range. p_due_from is the caller's note for the cursor, or null.
CREATE FUNCTION {schema}.take_next(
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

-- What a want needs to know before it takes anything. The second half is about limits of the group, and null without
-- them: what they are, and what they leave now (see 0010_owners_and_limits).
CREATE TYPE {schema}.want AS (
    subscription_id integer, messages_max bigint, lease_ms bigint, topic_id integer, lanes integer, max_attempts integer,
    -- Whether something is due; from when on to look for it; and where nothing is, what to note in the cursor.
    has_due boolean, due_since timestamptz, due_from timestamptz, quarantined boolean,
    in_flight_max bigint, rate double precision, burst bigint,
    room bigint, free bigint, tokens double precision, filled_at timestamptz, turned_back boolean
);

-- One subscription without lanes. See docs/decisions for why a suspect range travels alone.
CREATE FUNCTION {schema}.claim_plain(p_want {schema}.want, p_owner text, p_deadline timestamptz, p_now timestamptz)
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
                            r.attempts + 1, r.due_at, r.suspect, NULL, NULL, NULL, NULL)::{schema}.claimed;
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
                            v_lease.last_offset, 1, p_deadline, false, NULL, NULL, NULL, NULL)::{schema}.claimed;
            v_next := v_lease.last_offset + 1;
            v_left := v_left - (v_lease.last_offset - v_lease.first_offset + 1);
        ELSIF v_lease.skipped THEN
            RETURN NEXT {schema}.recheck(p_want.subscription_id, p_want.topic_id, 1);
        END IF;
        EXIT WHEN v_lease.first_offset IS NULL OR NOT v_lease.more OR v_left = 0;
    END LOOP;
END $$;
