-- Reading the log: which offsets of a range are there.
--
-- Statements of the head (functions/head.sql) on the log come in two forms. Shared topics name the shared table, in a plan that is kept. The others are planned each
-- time, with values: a kept plan on the partitioned log locks every partition of every topic before it leaves any out.
-- Which form is right is read after the last offset was: storage changes only while a topic has no message and no publisher.

-- What is missing below rows of a topic in (p_after, p_until]; below the first of them from p_head on.
CREATE OR REPLACE FUNCTION {schema}.missing_above(
    p_topic_id integer, p_shared boolean, p_head bigint, p_after bigint, p_until bigint,
    OUT missing int8multirange, OUT top bigint, OUT seen pg_snapshot
)
LANGUAGE plpgsql AS $$
BEGIN
    IF p_shared THEN
        SELECT coalesce(range_agg(int8range(s.before + 1, s.message_offset)) FILTER (WHERE s.message_offset > s.before + 1), '{}'),
               max(s.message_offset), pg_current_snapshot()
        INTO missing, top, seen
        FROM (SELECT m.message_offset, lag(m.message_offset, 1, p_head) OVER (ORDER BY m.message_offset) AS before
              FROM {schema}.message_shared m
              WHERE m.topic_id = p_topic_id AND m.message_offset > p_after AND m.message_offset <= p_until) s;
    ELSE
        EXECUTE 'SELECT coalesce(range_agg(int8range(s.before + 1, s.message_offset)) FILTER (WHERE s.message_offset > s.before + 1), ''{}''),
                        max(s.message_offset), pg_current_snapshot()
                 FROM (SELECT m.message_offset, lag(m.message_offset, 1, $2) OVER (ORDER BY m.message_offset) AS before
                       FROM {schema}.message m
                       WHERE m.topic_id = $1 AND m.message_offset > $3 AND m.message_offset <= $4) s'
        INTO missing, top, seen USING p_topic_id, p_head, p_after, p_until;
    END IF;
END $$;

-- Rows in those gaps of a topic that may have changed (a bound above p_changed, or noted above p_since) or close now, and what
-- has ended as of the same snapshot: the rows prove that a gap is dead only together with it.
CREATE OR REPLACE FUNCTION {schema}.rows_in_gaps(
    p_topic_id integer, p_changed xid8, p_since bigint, p_until bigint, p_horizon xid8, OUT late int8multirange, OUT ended xid8
)
LANGUAGE plpgsql AS $$
BEGIN
    -- OFFSET 0 keeps the order of the join: gap by gap, by the log's index. The other way round, every message of the
    -- topic would be held against every gap.
    IF (SELECT t.storage = 'shared' FROM {schema}.topic t WHERE t.topic_id = p_topic_id) THEN
        SELECT range_agg(int8range(m.message_offset, m.message_offset, '[]')),
               greatest(p_horizon, pg_snapshot_xmin(pg_current_snapshot()))
        INTO late, ended
        FROM {schema}.gap g
        CROSS JOIN LATERAL (
            SELECT x.message_offset FROM {schema}.message_shared x
            WHERE x.topic_id = p_topic_id AND x.message_offset BETWEEN g.first_offset AND g.last_offset OFFSET 0
        ) m
        WHERE g.topic_id = p_topic_id
          AND (g.bound > p_changed OR g.bound IS NULL OR g.first_offset > p_since
               OR g.bound <= greatest(p_horizon, pg_snapshot_xmin(pg_current_snapshot())));
    ELSE
        -- With the span of all gaps as values: partitions outside of it are not locked.
        EXECUTE 'SELECT range_agg(int8range(m.message_offset, m.message_offset, ''[]'')),
                        greatest($4, pg_snapshot_xmin(pg_current_snapshot()))
                 FROM {schema}.gap g
                 CROSS JOIN LATERAL (
                     SELECT x.message_offset FROM {schema}.message x
                     WHERE x.topic_id = $1 AND x.message_offset BETWEEN g.first_offset AND g.last_offset
                       AND x.message_offset BETWEEN $5 AND $6 OFFSET 0
                 ) m
                 WHERE g.topic_id = $1
                   AND (g.bound > $2 OR g.bound IS NULL OR g.first_offset > $3
                        OR g.bound <= greatest($4, pg_snapshot_xmin(pg_current_snapshot())))'
        INTO late, ended
        USING p_topic_id, p_changed, p_since, p_horizon,
              (SELECT min(g.first_offset) FROM {schema}.gap g WHERE g.topic_id = p_topic_id), p_until;
    END IF;
END $$;

-- The first stored offset of a span that was published at that time or later; null if there is none. By halving, because no
-- index knows times: each look is one by the log's key.
--
-- Exact where times rise with offsets. They do but for publishers that overlap: a time is read just before its offsets are
-- taken, so of two that overlap one may have the earlier time and the higher offset, by no more than what is taken during a
-- statement. Halving then ends at one of several places where times go from earlier to later; so the ten thousand messages
-- before it, a largest batch, are looked at, and before what is found there again: the lowest counts, and what lies between is
-- delivered rather than skipped. Only where the server's clock was set back by more than that is a message passed over:
-- a start may then be any place at which the log's times go past the one asked for. Planned each time: see functions/head.sql.
CREATE OR REPLACE FUNCTION {schema}.first_since(p_topic_id integer, p_first bigint, p_last bigint, p_at timestamptz) RETURNS bigint
LANGUAGE plpgsql
SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    -- Everything below v_low is earlier; v_high and everything above is not.
    v_low bigint := p_first;
    v_high bigint := p_last + 1;
    v_middle bigint;
    v_offset bigint;
    v_at timestamptz;
BEGIN
    WHILE v_low < v_high LOOP
        v_middle := v_low + (v_high - v_low) / 2;
        SELECT m.message_offset, m.created_at INTO v_offset, v_at FROM {schema}.message m
        WHERE m.topic_id = p_topic_id AND m.message_offset >= v_middle AND m.message_offset < v_high
        ORDER BY m.message_offset LIMIT 1;
        IF FOUND AND v_at < p_at THEN
            v_low := v_offset + 1;
        ELSE
            v_high := v_middle;
        END IF;
    END LOOP;
    FOR i IN 1..10 LOOP
        SELECT min(q.message_offset) FILTER (WHERE q.created_at >= p_at) INTO v_offset
        FROM (SELECT m.message_offset, m.created_at FROM {schema}.message m
              WHERE m.topic_id = p_topic_id AND m.message_offset >= p_first AND m.message_offset < v_low
              ORDER BY m.message_offset DESC LIMIT 10000) q;
        EXIT WHEN v_offset IS NULL;
        v_low := v_offset;
    END LOOP;
    SELECT min(m.message_offset) INTO v_offset FROM {schema}.message m
    WHERE m.topic_id = p_topic_id AND m.message_offset BETWEEN v_low AND p_last;
    RETURN v_offset;
END $$;

-- How many messages of a set of offsets are stored, the first and the last of them.
CREATE OR REPLACE FUNCTION {schema}.stored_in(
    p_topic_id integer, p_offsets int8multirange, OUT messages bigint, OUT first_offset bigint, OUT last_offset bigint
)
LANGUAGE sql STABLE AS $$
    SELECT count(*), min(m.message_offset), max(m.message_offset)
    FROM unnest(p_offsets) r
    -- Range by range, by the log's index.
    CROSS JOIN LATERAL (SELECT x.message_offset FROM {schema}.message x WHERE x.topic_id = p_topic_id
                        AND x.message_offset >= lower(r) AND (upper_inf(r) OR x.message_offset < upper(r)) OFFSET 0) m
$$;
