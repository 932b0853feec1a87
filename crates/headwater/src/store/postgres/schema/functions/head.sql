-- The head: how far a topic's offsets are final, and why no message is ever skipped.
--
-- Transactions commit in another order than they took offsets, so the message of a missing offset may still commit. Which
-- transactions may own it?
--
--   1. publish_batch and promote call pg_current_xact_id() and only then nextval(). So the owner of an offset had its
--      xid before the offset was taken.
--   2. "advance" reads L, the last offset taken, and only then lets its own transaction get an xid, B. The owner of an
--      offset <= L got its xid before L was read, so an xid below B.  (The xids of visible rows prove nothing: the
--      transaction that committed offset h may have had its xid long before the owner of a missing g < h got one, and a
--      snapshot's xmax is only one past the last *completed* xid.)
--   3. Then a snapshot is taken, in the statement that searches for the rows: if its xmin >= B, every transaction with an
--      xid below B has ended, and those that committed are visible to this very statement. So an offset <= L that the
--      statement does not see will never have a message: it is dead, and the head steps over it.
--   4. Otherwise the head waits at the first missing offset, for gap_patience at most. Then it steps over the offsets that
--      are missing below a visible row, and records them in "gap" with their bound B. A recorded gap is searched: rows that
--      appear in it are late messages and become an outstanding range of every subscription whose cursor has passed them;
--      the gap is closed once xmin >= B, by 3.
--
-- A row appears in a gap only when a transaction below its bound ends. So the snapshot of the last search is kept, and
-- first_ended() returns the lowest xid that ran then and has ended since: a gap whose bound is not above that xid is unchanged,
-- and is not searched. Rows of subtransactions appear when the top transaction ends, and a snapshot's xip has only the top ones,
-- prepared ones included; bounds are above the owners' top xids (1 calls pg_current_xact_id(), which returns the top xid). A
-- transaction that the snapshot took for running because its xid is at or above xmax counts as ended. Two rules prevent the loss
-- of a row, whatever is stored:
--   - a gap is searched by the very statement whose xmin closes it;
--   - a gap is searched by the call that records it, after it recorded it.
-- A stored snapshot survives a crash and a failover. A bound is the xid of a transaction that committed before the row of
-- the head that holds the snapshot, so the write-ahead log has it, and no xid below a bound is assigned again. A snapshot
-- from the future (its xmax is above the present one) is of another cluster or of a lost timeline, and is ignored. A
-- restored dump begins an epoch, which deletes all snapshots: xids of another cluster, or of another time, mean nothing here.
-- A transaction sees its own rows before it ends, and its own xid is not in its own xip: so for itself it counts as ended. For
-- others it has not ended, so a transaction that had an xid before L was read stores no snapshot.
--
-- The same applies to offsets right above the head: where no row was visible, none is until an owner ends. So the rows of a
-- transaction that publishes a million messages are skipped without being visited. Offsets taken later are another piece with a
-- higher bound; pieces are merged as soon as the same running transactions are below their bounds. A piece that is searched again
-- keeps its bound, which 2 proves of its offsets whenever they are searched: so only transactions that are older than the piece
-- cause another search of it, each one at most, and those that come and go beside it cause none.
--
-- A late message reaches each subscription exactly once because the hand-out runs under FOR UPDATE of the head row, and a
-- claim or subscribe that finds a recorded gap first takes FOR SHARE (FOR UPDATE) of that row. Either the hand-out came before:
-- then the claim sees the gap without the row, and its range includes it. Or it comes after: then the hand-out sees the
-- cursor beyond the row. A claim that finds no gap moves its cursor across none.

-- The lowest xid that ran as of a snapshot and may have ended as of a later one. Zero if the snapshot cannot be used.
CREATE OR REPLACE FUNCTION {schema}.first_ended(p_then pg_snapshot, p_now pg_snapshot) RETURNS xid8
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_then IS NULL OR pg_snapshot_xmax(p_then) > pg_snapshot_xmax(p_now) THEN
        RETURN '0'::xid8;
    END IF;
    RETURN least(pg_snapshot_xmax(p_then),
                 (SELECT x FROM pg_snapshot_xip(p_then) x WHERE pg_visible_in_snapshot(x, p_now) ORDER BY x LIMIT 1));
END $$;

-- Whether the gaps of a head have to be searched before a claim passes them. Not within 20 ms of the last search. Later a search is
-- needed only if a transaction has ended that may own a row in a gap, which the snapshots tell; and twice a second, because locks
-- may prove gaps dead whose bounds an open transaction of another topic holds back (see publisher_horizon).
CREATE OR REPLACE FUNCTION {schema}.gaps_due(
    p_until bigint, p_checked_at timestamptz, p_seen pg_snapshot, p_bound xid8, p_clock timestamptz
) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT p_until > 0 AND CASE WHEN {schema}.stamp_age_ms(p_checked_at, p_clock) <= 20 THEN false
                                WHEN {schema}.stamp_age_ms(p_checked_at, p_clock) <= 500
                                THEN ({schema}.first_ended(p_seen, pg_current_snapshot()) >= p_bound) IS NOT TRUE
                                ELSE true END
$$;

-- A snapshot reduced to xids below a bound; unchanged without a bound.
CREATE OR REPLACE FUNCTION {schema}.snapshot_below(p_seen pg_snapshot, p_bound xid8) RETURNS pg_snapshot
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN format('%s:%s:%s', pg_snapshot_xmin(p_seen), pg_snapshot_xmax(p_seen), (
        SELECT string_agg(x::text, ',' ORDER BY x) FROM pg_snapshot_xip(p_seen) x WHERE (x < p_bound) IS NOT FALSE))::pg_snapshot;
END $$;

-- Records wide ranges of dead offsets, so that claims skip them; p_dead are final. Returns the highest offset recorded, or null.
CREATE OR REPLACE FUNCTION {schema}.note_holes(p_topic_id integer, p_dead int8multirange) RETURNS bigint
LANGUAGE sql AS $$
    WITH noted AS (
        INSERT INTO {schema}.hole AS h (topic_id, first_offset, last_offset)
        SELECT p_topic_id, lower(r), upper(r) - 1 FROM unnest(p_dead) r WHERE upper(r) - lower(r) >= 1000
        ON CONFLICT (topic_id, first_offset) DO UPDATE SET last_offset = greatest(h.last_offset, excluded.last_offset)
        RETURNING last_offset
    )
    SELECT max(n.last_offset) FROM noted n
$$;

-- Hands out late rows to every subscription whose cursor has passed them, and removes them from their gaps.
CREATE OR REPLACE FUNCTION {schema}.hand_out_late(p_topic_id integer, p_late int8multirange) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    -- Each lane of an ordered subscription gets the range; all lanes but that of the message's key ack it without reading it.
    INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, lane)
    SELECT {schema}.new_token(), greatest(lower(r), s.start_offset), least(upper(r), c.next_offset) - 1,
           '-infinity', c.subscription_id, CASE WHEN s.lanes > 0 THEN c.lane END
    FROM unnest(p_late) r
    JOIN {schema}.cursor c ON c.topic_id = p_topic_id AND c.next_offset > lower(r)
    JOIN {schema}.subscription s ON s.subscription_id = c.subscription_id
    -- A cancelled subscription never has outstanding ranges: a cancel waits for the head's lock first.
    WHERE greatest(lower(r), s.start_offset) < least(upper(r), c.next_offset) AND s.state <> 'cancelled';
    PERFORM {schema}.record_late(p_topic_id, p_late);
    -- The rest of the gaps they were in.
    WITH hit AS (
        DELETE FROM {schema}.gap g
        WHERE g.topic_id = p_topic_id AND p_late && int8range(g.first_offset, g.last_offset, '[]')
        RETURNING g.first_offset, g.last_offset, g.bound, g.noted_at
    )
    INSERT INTO {schema}.gap (topic_id, first_offset, last_offset, bound, noted_at)
    SELECT p_topic_id, lower(r), upper(r) - 1, hit.bound, hit.noted_at
    FROM hit, unnest(int8multirange(int8range(hit.first_offset, hit.last_offset, '[]')) - p_late) r;
END $$;

-- Hands out rows that appeared in recorded gaps, and closes gaps that are dead. Runs under FOR UPDATE of the head row, and
-- returns the row with its new values. Gaps above p_since were recorded by this transaction. p_bound bounds the owners of offsets
-- <= p_last, or is null if this transaction had an xid before p_last was read.
CREATE OR REPLACE FUNCTION {schema}.watch_gaps(
    p_head {schema}.head, p_since bigint, p_last bigint, p_bound xid8, p_horizon xid8,
    OUT late bigint, OUT closed bigint, OUT h {schema}.head
)
LANGUAGE plpgsql AS $$
DECLARE
    p_topic_id integer := p_head.topic_id;
    v_seen pg_snapshot := pg_current_snapshot();
    v_changed xid8 := {schema}.first_ended(p_head.gaps_seen, v_seen);
    v_late int8multirange;
    v_dead int8multirange;
    v_ended xid8;
BEGIN
    late := 0;
    closed := 0;
    h := p_head;
    -- No transaction has ended that may own a row in a gap: so no row appeared, and no gap is dead, unless locks prove it.
    IF v_changed >= h.gaps_bound AND h.gaps_until <= p_since AND p_horizon IS NULL THEN
        RETURN;
    END IF;
    SELECT r.late, r.ended INTO v_late, v_ended
    FROM {schema}.rows_in_gaps(p_topic_id, v_changed, p_since, h.gaps_until, p_horizon) r;
    IF v_late IS NOT NULL THEN
        PERFORM {schema}.hand_out_late(p_topic_id, v_late);
        SELECT sum(upper(r) - lower(r)) INTO late FROM unnest(v_late) r;
    END IF;
    WITH dead AS (
        DELETE FROM {schema}.gap g WHERE g.topic_id = p_topic_id AND g.bound <= v_ended
        RETURNING g.first_offset, g.last_offset
    )
    SELECT count(*), range_agg(int8range(d.first_offset, d.last_offset, '[]')) INTO closed, v_dead FROM dead d;
    IF closed > 0 THEN
        PERFORM {schema}.note_holes(p_topic_id, v_dead);
        h.holes_until := (SELECT coalesce(max(x.last_offset), 0) FROM {schema}.hole x WHERE x.topic_id = p_topic_id);
    END IF;
    IF p_bound IS NOT NULL THEN
        IF h.gaps_bound IS NULL OR h.gaps_bound > p_bound THEN
            UPDATE {schema}.gap g SET bound = p_bound
            WHERE g.topic_id = p_topic_id AND g.last_offset <= p_last
              -- A bound from the future comes from a restored dump of another cluster.
              AND (g.bound IS NULL OR g.bound > p_bound);
            h.gaps_bound := (SELECT g.bound FROM {schema}.gap g WHERE g.topic_id = p_topic_id ORDER BY g.bound DESC NULLS FIRST LIMIT 1);
        END IF;
        -- The snapshot from before the search: rows of transactions that ended in between are searched for again.
        h.gaps_seen := {schema}.snapshot_below(v_seen, h.gaps_bound);
    END IF;
    h.gaps_until := (SELECT coalesce(max(g.last_offset), 0) FROM {schema}.gap g WHERE g.topic_id = p_topic_id);
END $$;

-- The empty pieces above a head after a search as of p_seen that found no row up to p_until: the first p_known of those stored, and
-- the rest beyond them with its bound. Pieces with the same running transactions below their bounds are merged. A narrow piece is
-- not worth storing.
CREATE OR REPLACE FUNCTION {schema}.note_empty(p_head {schema}.head, p_known integer, p_until bigint, p_bound xid8, p_seen pg_snapshot)
RETURNS {schema}.head
LANGUAGE plpgsql AS $$
DECLARE
    h {schema}.head := p_head;
BEGIN
    h.empty_seen := NULL;
    IF p_until - h.head < 1000 THEN
        RETURN h;
    END IF;
    WITH piece AS (
        SELECT least(u.until, p_until) AS until, u.bound
        FROM unnest(p_head.empty_until[:p_known], p_head.empty_bound[:p_known]) WITH ORDINALITY AS u (until, bound, i)
        WHERE u.until > h.head AND coalesce(p_head.empty_until[u.i - 1], 0) < p_until
        UNION ALL
        -- Never below the bound of the piece before: so the pieces whose owners may have ended are the last ones.
        SELECT p_until, greatest(p_bound, p_head.empty_bound[p_known]) WHERE p_until > coalesce(p_head.empty_until[p_known], 0)
    ), merged AS (
        SELECT max(p.until) AS until, (array_agg(p.bound ORDER BY p.until DESC))[1] AS bound
        FROM piece p
        GROUP BY (SELECT count(*) FROM pg_snapshot_xip(p_seen) x WHERE x < p.bound),
                 CASE WHEN p.bound > pg_snapshot_xmax(p_seen) THEN p.bound END
    )
    SELECT array_agg(m.until ORDER BY m.until), array_agg(m.bound ORDER BY m.until) INTO h.empty_until, h.empty_bound FROM merged m;
    h.empty_seen := {schema}.snapshot_below(p_seen, h.empty_bound[cardinality(h.empty_bound)]);
    RETURN h;
END $$;

-- Moves one head as far as it may go. Runs under FOR UPDATE of the head row; p_last and p_bound as above.
CREATE OR REPLACE FUNCTION {schema}.move_head(
    p_head {schema}.head, p_last bigint, p_bound xid8, p_horizon xid8, p_rows_max integer, p_gaps_max bigint
) RETURNS {schema}.head
LANGUAGE plpgsql AS $$
DECLARE
    h {schema}.head := p_head;
    v_shared boolean;
    v_patience_ms bigint;
    v_known integer := 0;
    v_kept integer := 0;
    v_after bigint := h.head;
    v_rows bigint := 0;
    v_top bigint;
    v_limit bigint;
    v_missing int8multirange;
    v_noted int8multirange;
    v_dead int8multirange := '{}';
    v_seen pg_snapshot;
    v_scanned pg_snapshot;
    v_ended xid8;
    v_now timestamptz := clock_timestamp();
BEGIN
    SELECT t.storage = 'shared', t.gap_patience_ms INTO v_shared, v_patience_ms FROM {schema}.topic t WHERE t.topic_id = h.topic_id;
    IF h.empty_seen IS NOT NULL THEN
        v_seen := pg_current_snapshot();
        v_ended := {schema}.first_ended(h.empty_seen, v_seen);
        -- The bounds of a snapshot that cannot be used are xids of another cluster or time.
        v_known := CASE WHEN v_ended > '0'::xid8 THEN cardinality(h.empty_bound) ELSE 0 END;
        SELECT count(*) INTO v_kept FROM unnest(h.empty_bound) b WHERE b <= v_ended;
        IF v_kept > 0 THEN
            v_after := greatest(h.head, h.empty_until[v_kept]);
        END IF;
    END IF;
    IF v_after < p_last THEN
        IF v_shared THEN
            SELECT count(*), max(s.message_offset), pg_current_snapshot() INTO v_rows, v_top, v_scanned
            FROM (SELECT m.message_offset FROM {schema}.shared_messages(h.topic_id, v_after + 1, p_last) m
                  ORDER BY m.message_offset LIMIT p_rows_max) s;
        ELSE
            EXECUTE 'SELECT count(*), max(s.message_offset), pg_current_snapshot()
                     FROM (SELECT m.message_offset FROM {schema}.messages($1, $2 + 1, $3) m
                           ORDER BY m.message_offset LIMIT $4) s'
            INTO v_rows, v_top, v_scanned USING h.topic_id, v_after, p_last, p_rows_max;
        END IF;
        IF v_rows = v_top - h.head THEN
            -- Nothing is missing so far. Offsets taken above v_top but not visible are handled once no other row moves the head.
            h.head := v_top;
            h.stuck_at := NULL;
            h.empty_seen := NULL;
            RETURN h;
        END IF;
    END IF;
    -- Something is missing. The region ends at p_last, or at the last row found.
    v_limit := CASE WHEN v_rows = p_rows_max THEN v_top ELSE p_last END;
    v_missing := '{}';
    IF v_rows > 0 THEN
        SELECT r.missing, r.top, r.seen INTO v_missing, v_top, v_scanned
        FROM {schema}.missing_above(h.topic_id, v_shared, h.head, v_after, v_limit) r;
    END IF;
    v_top := coalesce(v_top, h.head);
    v_missing := v_missing + int8multirange(int8range(v_top + 1, v_limit + 1));
    -- Use the snapshot of the search. Pieces that were not searched are empty only as of the earlier snapshot.
    IF v_kept = 0 THEN
        v_seen := v_scanned;
    END IF;
    v_ended := greatest(p_horizon, pg_snapshot_xmin(v_seen));
    -- Dead: every possible owner has ended and the row does not exist.
    IF v_ended >= p_bound THEN
        v_dead := v_missing;
    ELSIF h.stuck_at IS NOT NULL AND v_ended >= h.stuck_bound THEN
        v_dead := v_missing * int8multirange(int8range(0, h.stuck_top + 1));
    END IF;
    v_missing := v_missing - v_dead;
    IF NOT isempty(v_dead) THEN
        h.holes_until := greatest(h.holes_until, {schema}.note_holes(h.topic_id, v_dead));
    END IF;
    -- After gap_patience: step over the offsets missing below a visible row, and record them.
    IF h.stuck_at IS NOT NULL AND {schema}.stamp_age_ms(h.stuck_since, v_now) >= v_patience_ms THEN
        -- All of them, also those missing for a shorter time: a message waits for its predecessors once, not once for each
        -- of them. The lowest first, as many as the limit allows.
        SELECT coalesce(range_agg(n.r), '{}') INTO v_noted
        FROM (SELECT r FROM unnest(v_missing * int8multirange(int8range(0, v_top + 1))) r ORDER BY r
              LIMIT greatest(p_gaps_max - (SELECT count(*) FROM {schema}.gap g WHERE g.topic_id = h.topic_id), 0)) n;
        IF NOT isempty(v_noted) THEN
            INSERT INTO {schema}.gap (topic_id, first_offset, last_offset, bound, noted_at)
            SELECT h.topic_id, lower(r), upper(r) - 1,
                   CASE WHEN upper(r) - 1 <= h.stuck_top THEN coalesce(h.stuck_bound, p_bound) ELSE p_bound END, v_now
            FROM unnest(v_noted) r;
            h.gaps_bound := CASE WHEN p_bound IS NULL OR h.gaps_until > 0 AND h.gaps_bound IS NULL THEN NULL
                                 WHEN h.gaps_until > 0 THEN greatest(h.gaps_bound, p_bound, h.stuck_bound)
                                 ELSE greatest(p_bound, h.stuck_bound) END;
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
        -- Only up to p_last: the session that stored a higher stuck_top saw offsets whose owners may have xids above p_bound.
        h.stuck_bound := p_bound;
    END IF;
    IF p_bound IS NOT NULL THEN
        h := {schema}.note_empty(h, v_known, CASE WHEN isempty(v_missing) THEN h.head
                                                  ELSE (SELECT upper(r) - 1 FROM unnest(v_missing) r LIMIT 1) END, p_bound, v_seen);
    END IF;
    RETURN h;
END $$;

-- Advances the heads of these topics, hands out late rows and closes gaps. A head that another process is advancing is
-- skipped, not waited for. Idle topics cost two reads and no xid. Time here is always the server's own: it measures how
-- long real transactions stay open.
--
-- Index scans only: they mark dead entries when they find them and never visit them again, while a bitmap or sequential scan
-- visits all rows that vacuum has not removed, and after a burst that is thousands of gaps.
CREATE OR REPLACE FUNCTION {schema}.advance(
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
    v_watched record;
    h {schema}.head;
    v_new {schema}.head;
BEGIN
    late := 0;
    closed := 0;
    skipped := false;
    SELECT array_agg(q.topic_id ORDER BY q.topic_id), array_agg(q.last ORDER BY q.topic_id) INTO v_ids, v_lasts
    FROM (SELECT t.topic_id, coalesce(pg_sequence_last_value(t.offsets), 0) AS last, e.head,
                 {schema}.gaps_due(e.gaps_until, e.gaps_checked_at, e.gaps_seen, e.gaps_bound, v_now) AS due,
                 -- No row is visible up to this offset: see move_head. From time to time locks are read to find out whether it is
                 -- dead.
                 e.empty_until[cardinality(e.empty_until)] AS empty_until,
                 v_fresh AND e.empty_seen IS NOT NULL AND {schema}.stamp_age_ms(coalesce(e.horizon_at, e.stuck_since), v_now) <= 500
                 AND {schema}.first_ended(e.empty_seen, pg_current_snapshot()) >= e.empty_bound[cardinality(e.empty_bound)] AS empty
          FROM {schema}.topic t
          CROSS JOIN LATERAL (SELECT y.head, y.gaps_until, y.gaps_checked_at, y.gaps_seen, y.gaps_bound,
                                     y.empty_until, y.empty_bound, y.empty_seen, y.horizon_at, y.stuck_since
                              FROM {schema}.head y WHERE y.topic_id = t.topic_id ORDER BY y.era LIMIT 1) e
          WHERE t.topic_id = ANY (p_topic_ids)) q
    WHERE q.last > q.head AND NOT (coalesce(q.empty, false) AND q.empty_until >= q.last) OR q.last < q.head OR q.due;
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
        -- Only if each statement has a snapshot of its own, taken after the locks were read.
        IF v_bound IS NOT NULL AND current_setting('transaction_isolation') = 'read committed'
           AND coalesce({schema}.stamp_age_ms(h.horizon_at, v_now) > CASE WHEN h.stuck_at IS NULL THEN 500 ELSE 100 END, true)
           -- When gap_patience ends, before anything is recorded: offsets that were rolled back are not recorded.
           AND (h.stuck_at IS NOT NULL AND {schema}.stamp_age_ms(h.stuck_since, v_now) >= (
                    SELECT least(t.gap_patience_ms, 1000) FROM {schema}.topic t WHERE t.topic_id = h.topic_id)
                OR h.gaps_until > 0 AND EXISTS (SELECT FROM {schema}.gap g WHERE g.topic_id = h.topic_id
                                                AND {schema}.stamp_age_ms(g.noted_at, v_now) > 1000)) THEN
            v_horizon := coalesce({schema}.publisher_horizon(h.topic_id, v_bound), v_bound);
            v_new.horizon_at := v_now;
        END IF;
        IF v_lasts[i] < h.head THEN
            PERFORM {schema}.raise_offsets(h.topic_id, h.head);
        ELSIF v_lasts[i] > h.head THEN
            v_new := {schema}.move_head(v_new, v_lasts[i], v_bound, v_horizon, p_rows_max, p_gaps_max);
        END IF;
        -- After move_head has searched and before the result commits: the commit that made a row above visible also made visible,
        -- to this later snapshot, the late rows of the same transaction. So they are handed out no later than that row, and
        -- the order per key is kept. If the head did not move, the check can wait.
        IF v_new.gaps_until > 0
           AND (v_new.head > h.head OR v_horizon IS NOT NULL
                OR coalesce({schema}.stamp_age_ms(h.gaps_checked_at, v_now) > 20, true)) THEN
            SELECT w.late, w.closed, w.h INTO v_watched FROM {schema}.watch_gaps(v_new, h.head, v_lasts[i], v_bound, v_horizon) w;
            v_new := v_watched.h;
            v_late := v_watched.late;
            late := late + v_late;
            closed := closed + v_watched.closed;
            v_new.gaps_checked_at := v_now;
        END IF;
        -- Compared as bytes: snapshots have no equality operator.
        IF v_new *<> h THEN
            UPDATE {schema}.head e
            SET head = v_new.head, stuck_at = v_new.stuck_at, stuck_since = v_new.stuck_since, stuck_top = v_new.stuck_top,
                stuck_bound = v_new.stuck_bound, gaps_until = v_new.gaps_until, gaps_checked_at = v_new.gaps_checked_at,
                gaps_seen = v_new.gaps_seen, gaps_bound = v_new.gaps_bound, empty_until = v_new.empty_until,
                empty_bound = v_new.empty_bound, empty_seen = v_new.empty_seen,
                horizon_at = v_new.horizon_at, holes_until = v_new.holes_until, moves = h.moves + 1, era = -((h.moves + 1) / 64)
            WHERE e.topic_id = h.topic_id AND e.era <= h.era;
        END IF;
        IF v_late > 0 THEN
            PERFORM {schema}.wake(h.topic_id, true, false);
        END IF;
    END LOOP;
END $$;

-- The head of a topic after an advance, whether offsets above it are taken, and the gaps below it, for readers without a group. Head
-- and gaps are of one snapshot: an offset up to the head that has no row and is in no gap is dead. A gap is deleted or split only
-- once its row is visible, or its owners have ended: a reader that fetches afterwards finds the row, or there is none. Skipped: another
-- process holds the head, so a message that committed before this call may be above it.
CREATE OR REPLACE FUNCTION {schema}.advanced_head(
    p_topic_id integer, p_rows_max integer, p_gaps_max bigint,
    OUT head bigint, OUT taken boolean, OUT skipped boolean, OUT gap_firsts bigint[], OUT gap_lasts bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT a.skipped INTO skipped FROM {schema}.advance(ARRAY[p_topic_id], p_rows_max, p_gaps_max) a;
    -- A statement of its own: it sees what the advance wrote.
    SELECT h.head, coalesce(g.firsts, '{}'), coalesce(g.lasts, '{}') INTO head, gap_firsts, gap_lasts
    FROM {schema}.head h
    CROSS JOIN LATERAL (SELECT array_agg(q.first_offset ORDER BY q.first_offset) AS firsts,
                               array_agg(q.last_offset ORDER BY q.first_offset) AS lasts
                        FROM {schema}.gap q WHERE q.topic_id = p_topic_id) g
    WHERE h.topic_id = p_topic_id ORDER BY h.era LIMIT 1;
    taken := coalesce(head < {schema}.last_taken(p_topic_id), false);
END $$;
