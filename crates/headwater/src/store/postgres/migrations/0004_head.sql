-- The head: how far a topic's offsets are final, and why no message is ever skipped.
--
-- Transactions commit in another order than they took offsets, so a missing offset may still come. Who may own it?
--
--   1. publish_batch and promote call pg_current_xact_id() and only then nextval(). So the owner of an offset had its
--      xid before the offset was taken.
--   2. "advance" reads L, the last offset taken, and only then lets its own transaction get an xid, B. Whoever owns an
--      offset <= L got an xid before L was read, so an xid below B.  (The visible rows' own xids prove nothing: the
--      transaction that committed offset h may have had its xid long before the owner of a missing g < h got one, and a
--      snapshot's xmax is only one past the last *completed* xid.)
--   3. A snapshot taken after that, in the statement that looks for the rows: if its xmin >= B, every transaction with
--      an xid below B has ended, and a commit among them is visible to this very statement. So an offset <= L that
--      the statement does not see will never come: it is dead, and the head steps over it.
--   4. Otherwise the head waits at the first missing offset, for gap_patience at most, and then steps over what is
--      missing below a visible row, noting it in "gap" with its bound B. A noted gap is watched: rows that appear in it are late
--      and become an outstanding range of every subscription whose cursor has passed them; it is closed once
--      xmin >= B, by 3.
--
-- A late row reaches each subscription exactly once because the hand-out runs under FOR UPDATE of the head row, and a
-- claim or subscribe that meets a noted gap takes FOR SHARE (FOR UPDATE) of it first: either the hand-out came before,
-- then the claim sees the gap without the row and its range includes it; or after, then the hand-out sees the
-- cursor beyond it. A claim that meets no gap moves its cursor across none.

-- The last offset taken, committed or not; for those who may look but hold no right on the sequence.
CREATE FUNCTION {schema}.last_taken(p_topic_id integer) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(pg_sequence_last_value(t.offsets), 0) FROM {schema}.topic t WHERE t.topic_id = p_topic_id
$$;

-- The lowest xid of a running transaction that may own offsets, as far as locks tell: whoever inserts into the log holds
-- ROW EXCLUSIVE on it from before the first nextval() until its end. Null if there is none. So a long write transaction
-- that never publishes keeps no gap open. Ask before taking the snapshot that looks for rows: a lock is released
-- only after its transaction's end is visible.
CREATE FUNCTION {schema}.publisher_horizon(p_below xid8) RETURNS xid8
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH publishers AS (
        SELECT DISTINCT l.virtualtransaction FROM pg_locks l
        WHERE l.locktype = 'relation' AND l.relation = '{schema}.message'::regclass AND l.mode = 'RowExclusiveLock'
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND l.pid IS DISTINCT FROM pg_backend_pid()
    ), running AS (
        -- pg_locks shows 32 bits of an xid; the rest follows from p_below, which is near.
        SELECT p_below::text::bigint - ((p_below::text::bigint - x.transactionid::text::bigint + 2147483648) & 4294967295)
               + 2147483648 AS xid
        FROM pg_locks x
        WHERE x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted
          AND x.virtualtransaction IN (SELECT p.virtualtransaction FROM publishers p)
    )
    SELECT min(r.xid)::text::xid8 FROM running r
$$;

-- Notes dead offsets, where they are many, for claims to pass; p_dead are final. Returns the highest one noted, or null.
CREATE FUNCTION {schema}.note_holes(p_topic_id integer, p_dead int8multirange) RETURNS bigint
LANGUAGE sql AS $$
    WITH noted AS (
        INSERT INTO {schema}.hole AS h (topic_id, first_offset, last_offset)
        SELECT p_topic_id, lower(r), upper(r) - 1 FROM unnest(p_dead) r WHERE upper(r) - lower(r) >= 1000
        ON CONFLICT (topic_id, first_offset) DO UPDATE SET last_offset = greatest(h.last_offset, excluded.last_offset)
        RETURNING last_offset
    )
    SELECT max(n.last_offset) FROM noted n
$$;

-- Hands out rows that appeared in noted gaps, and closes gaps that are dead. Runs under FOR UPDATE of the head row.
-- p_bound bounds the owners of offsets <= p_last, or is null where this transaction had an xid before p_last was read.
CREATE FUNCTION {schema}.watch_gaps(p_topic_id integer, p_last bigint, p_bound xid8, p_horizon xid8, OUT late bigint, OUT closed bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_late int8multirange;
    v_dead int8multirange;
    v_ended xid8;
BEGIN
    late := 0;
    -- One statement: the rows and the xmin are of the same snapshot.
    SELECT range_agg(int8range(m.message_offset, m.message_offset, '[]')),
           pg_snapshot_xmin(pg_current_snapshot())
    INTO v_late, v_ended
    FROM {schema}.gap g
    -- OFFSET 0 keeps the order of the join: gap by gap, by the log's index. The other way round, every message of the
    -- topic would be held against every gap.
    CROSS JOIN LATERAL (
        SELECT x.message_offset FROM {schema}.message x
        WHERE x.topic_id = p_topic_id AND x.message_offset BETWEEN g.first_offset AND g.last_offset OFFSET 0
    ) m
    WHERE g.topic_id = p_topic_id;
    IF p_horizon > v_ended THEN
        v_ended := p_horizon;
    END IF;
    IF v_late IS NOT NULL THEN
        -- Each lane of an ordered subscription gets it, and all but the one of its key ack it unseen.
        INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, lane)
        SELECT {schema}.new_token(), greatest(lower(r), s.start_offset), least(upper(r), c.next_offset) - 1,
               '-infinity', c.subscription_id, CASE WHEN s.lanes > 0 THEN c.lane END
        FROM unnest(v_late) r
        JOIN {schema}.cursor c ON c.topic_id = p_topic_id AND c.next_offset > lower(r)
        JOIN {schema}.subscription s ON s.subscription_id = c.subscription_id
        -- A cancelled one holds nothing, ever: whoever cancels has waited for the head's lock first.
        WHERE greatest(lower(r), s.start_offset) < least(upper(r), c.next_offset) AND s.status <> 'cancelled';
        PERFORM {schema}.record_late(p_topic_id, v_late);
        SELECT sum(upper(r) - lower(r)) INTO late FROM unnest(v_late) r;
        -- What is left of the gaps they came from.
        WITH hit AS (
            DELETE FROM {schema}.gap g
            WHERE g.topic_id = p_topic_id AND v_late && int8range(g.first_offset, g.last_offset, '[]')
            RETURNING g.first_offset, g.last_offset, g.bound, g.noted_at
        )
        INSERT INTO {schema}.gap (topic_id, first_offset, last_offset, bound, noted_at)
        SELECT p_topic_id, lower(r), upper(r) - 1, hit.bound, hit.noted_at
        FROM hit, unnest(int8multirange(int8range(hit.first_offset, hit.last_offset, '[]')) - v_late) r;
    END IF;
    WITH dead AS (
        DELETE FROM {schema}.gap g WHERE g.topic_id = p_topic_id AND g.bound <= v_ended
        RETURNING g.first_offset, g.last_offset
    )
    SELECT count(*), range_agg(int8range(d.first_offset, d.last_offset, '[]')) INTO closed, v_dead FROM dead d;
    IF closed > 0 THEN
        PERFORM {schema}.note_holes(p_topic_id, v_dead);
    END IF;
    IF p_bound IS NOT NULL THEN
        UPDATE {schema}.gap g SET bound = p_bound
        WHERE g.topic_id = p_topic_id AND g.last_offset <= p_last
          -- A bound from the future was restored from another cluster's dump.
          AND (g.bound IS NULL OR g.bound > p_bound);
    END IF;
END $$;

-- Moves one head as far as it may go. Runs under FOR UPDATE of the head row; p_last and p_bound as above.
CREATE FUNCTION {schema}.move_head(
    p_head {schema}.head, p_last bigint, p_bound xid8, p_horizon xid8, p_rows_max integer, p_gaps_max bigint
) RETURNS {schema}.head
LANGUAGE plpgsql AS $$
DECLARE
    h {schema}.head := p_head;
    v_rows bigint;
    v_top bigint;
    v_limit bigint;
    v_missing int8multirange;
    v_noted int8multirange;
    v_dead int8multirange := '{}';
    v_ended xid8;
    v_patience_ms bigint;
    v_now timestamptz := clock_timestamp();
BEGIN
    SELECT count(*), max(s.message_offset) INTO v_rows, v_top
    FROM (SELECT m.message_offset FROM {schema}.message m
          WHERE m.topic_id = h.topic_id AND m.message_offset > h.head AND m.message_offset <= p_last
          ORDER BY m.message_offset LIMIT p_rows_max) s;
    IF v_rows = v_top - h.head THEN
        -- Nothing is missing so far. What is taken above v_top and not there yet is looked at when nothing else moves.
        h.head := v_top;
        h.stuck_at := NULL;
        RETURN h;
    END IF;
    -- Something is missing. Rows and xmin are of one snapshot; the region ends at p_last, or at the last row looked at.
    v_limit := CASE WHEN v_rows = p_rows_max THEN v_top ELSE p_last END;
    SELECT coalesce(range_agg(int8range(s.before + 1, s.message_offset)) FILTER (WHERE s.message_offset > s.before + 1), '{}'),
           max(s.message_offset), pg_snapshot_xmin(pg_current_snapshot())
    INTO v_missing, v_top, v_ended
    FROM (SELECT m.message_offset, lag(m.message_offset, 1, h.head) OVER (ORDER BY m.message_offset) AS before
          FROM {schema}.message m
          WHERE m.topic_id = h.topic_id AND m.message_offset > h.head AND m.message_offset <= v_limit) s;
    v_top := coalesce(v_top, h.head);
    v_missing := v_missing + int8multirange(int8range(v_top + 1, v_limit + 1));
    IF p_horizon > v_ended THEN
        v_ended := p_horizon;
    END IF;
    -- Dead: every possible owner has ended and the row is not there.
    IF v_ended >= p_bound THEN
        v_dead := v_missing;
    ELSIF h.stuck_at IS NOT NULL AND v_ended >= h.stuck_bound THEN
        v_dead := v_missing * int8multirange(int8range(0, h.stuck_top + 1));
    END IF;
    v_missing := v_missing - v_dead;
    IF NOT isempty(v_dead) THEN
        h.holes_until := greatest(h.holes_until, {schema}.note_holes(h.topic_id, v_dead));
    END IF;
    -- Waited for long enough: step over what is missing below a visible row, noting it.
    SELECT t.gap_patience_ms INTO v_patience_ms FROM {schema}.topic t WHERE t.topic_id = h.topic_id;
    IF h.stuck_at IS NOT NULL AND {schema}.stamp_age_ms(h.stuck_since, v_now) >= v_patience_ms THEN
        -- All of it, also what has been missing for a shorter time: a message waits for its predecessors once, not once
        -- for each of them.
        v_noted := v_missing * int8multirange(int8range(0, v_top + 1));
        IF NOT isempty(v_noted) AND (SELECT count(*) FROM {schema}.gap g WHERE g.topic_id = h.topic_id) < p_gaps_max THEN
            INSERT INTO {schema}.gap (topic_id, first_offset, last_offset, bound, noted_at)
            SELECT h.topic_id, lower(r), upper(r) - 1,
                   CASE WHEN upper(r) - 1 <= h.stuck_top THEN coalesce(h.stuck_bound, p_bound) ELSE p_bound END, v_now
            FROM unnest(v_noted) r;
            h.gaps_until := greatest(h.gaps_until, upper(v_noted) - 1);
            v_missing := v_missing - v_noted;
        END IF;
    END IF;
    h.head := CASE WHEN isempty(v_missing) THEN v_limit ELSE lower(v_missing) - 1 END;
    IF isempty(v_missing) THEN
        h.stuck_at := NULL;
    ELSIF h.stuck_at IS DISTINCT FROM lower(v_missing) THEN
        h.stuck_at := lower(v_missing);
        h.stuck_since := v_now;
        h.stuck_top := v_limit;
        h.stuck_bound := p_bound;
    ELSIF h.stuck_bound IS NULL AND h.stuck_top <= p_last THEN
        -- Only up to p_last: whoever noted a higher stuck_top saw offsets whose owners may have come after p_bound.
        h.stuck_bound := p_bound;
    END IF;
    RETURN h;
END $$;

-- Advances the heads of these topics, hands out late rows and closes gaps. A head that another process is advancing is
-- skipped, not waited for. Idle topics cost two reads and no xid. Time here is always the server's own: it measures how
-- long real transactions stay open.
--
-- Index scans only: they mark dead entries as they meet them and never visit them again, while a bitmap or sequential scan
-- visits all that vacuum has not removed, and after a burst that is thousands of gaps.
CREATE FUNCTION {schema}.advance(
    p_topic_ids integer[], p_rows_max integer, p_gaps_max bigint, OUT late bigint, OUT closed bigint, OUT skipped boolean
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_fresh boolean := pg_current_xact_id_if_assigned() IS NULL;
    v_ids integer[];
    v_lasts bigint[];
    v_bound xid8;
    v_horizon xid8;
    v_late bigint;
    v_closed bigint;
    h {schema}.head;
    v_new {schema}.head;
BEGIN
    late := 0;
    closed := 0;
    skipped := false;
    SELECT array_agg(q.topic_id ORDER BY q.topic_id), array_agg(q.last ORDER BY q.topic_id) INTO v_ids, v_lasts
    FROM (SELECT t.topic_id, coalesce(pg_sequence_last_value(t.offsets), 0) AS last, e.head, e.gaps_until,
                 coalesce({schema}.stamp_age_ms(e.gaps_checked_at, v_now) > 20, true) AS due
          FROM {schema}.topic t
          CROSS JOIN LATERAL (SELECT y.head, y.gaps_until, y.gaps_checked_at FROM {schema}.head y
                              WHERE y.topic_id = t.topic_id ORDER BY y.era LIMIT 1) e
          WHERE t.topic_id = ANY (p_topic_ids)) q
    WHERE q.last > q.head OR q.gaps_until > 0 AND q.due;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    -- The offsets up to these lasts are taken; only now does this transaction get its xid (2 above).
    IF v_fresh THEN
        v_bound := pg_current_xact_id();
    END IF;
    FOR i IN 1..cardinality(v_ids) LOOP
        SELECT * INTO h FROM {schema}.head e WHERE e.topic_id = v_ids[i] FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            skipped := true;
            CONTINUE;
        END IF;
        v_new := h;
        v_late := 0;
        v_horizon := NULL;
        -- Only where each statement has a snapshot of its own, taken after the locks were looked at.
        IF v_bound IS NOT NULL AND current_setting('transaction_isolation') = 'read committed'
           AND coalesce({schema}.stamp_age_ms(h.horizon_at, v_now) > 500, true)
           AND (h.stuck_at IS NOT NULL AND {schema}.stamp_age_ms(h.stuck_since, v_now) > 1000
                OR h.gaps_until > 0 AND EXISTS (SELECT FROM {schema}.gap g WHERE g.topic_id = h.topic_id
                                                AND {schema}.stamp_age_ms(g.noted_at, v_now) > 1000)) THEN
            v_horizon := coalesce({schema}.publisher_horizon(v_bound), v_bound);
            v_new.horizon_at := v_now;
        END IF;
        IF v_lasts[i] > h.head THEN
            v_new := {schema}.move_head(v_new, v_lasts[i], v_bound, v_horizon, p_rows_max, p_gaps_max);
        END IF;
        -- After the head's look and before anything of it commits: whatever made a row above visible also made visible,
        -- to this later snapshot, the rows of the same transaction that come late. So they are handed out no later, and
        -- order per key holds. Without a move there is no hurry.
        IF v_new.gaps_until > 0
           AND (v_new.head > h.head OR v_horizon IS NOT NULL
                OR coalesce({schema}.stamp_age_ms(h.gaps_checked_at, v_now) > 20, true)) THEN
            SELECT w.late, w.closed INTO v_late, v_closed
            FROM {schema}.watch_gaps(h.topic_id, v_lasts[i], v_bound, v_horizon) w;
            late := late + v_late;
            closed := closed + v_closed;
            v_new.gaps_checked_at := v_now;
            v_new.gaps_until := (SELECT coalesce(max(g.last_offset), 0) FROM {schema}.gap g WHERE g.topic_id = h.topic_id);
            IF v_closed > 0 THEN
                v_new.holes_until := (SELECT coalesce(max(x.last_offset), 0) FROM {schema}.hole x WHERE x.topic_id = h.topic_id);
            END IF;
        END IF;
        IF v_new IS DISTINCT FROM h THEN
            UPDATE {schema}.head e
            SET head = v_new.head, stuck_at = v_new.stuck_at, stuck_since = v_new.stuck_since, stuck_top = v_new.stuck_top,
                stuck_bound = v_new.stuck_bound, gaps_until = v_new.gaps_until, gaps_checked_at = v_new.gaps_checked_at,
                horizon_at = v_new.horizon_at, holes_until = v_new.holes_until, moves = h.moves + 1, era = -((h.moves + 1) / 64)
            WHERE e.topic_id = h.topic_id AND e.era <= h.era;
        END IF;
        IF v_late > 0 THEN
            PERFORM {schema}.wake(h.topic_id, true, false);
        END IF;
    END LOOP;
END $$;
