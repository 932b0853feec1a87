-- The log: everything that reads or writes stored messages, together with partitions.sql, which manages the tables of dedicated
-- topics. Functions and statements elsewhere name no table of messages, so that storage can be changed in these files alone.

-- The messages of a topic in a closed range. Both functions are written so that PostgreSQL inlines them into the calling statement
-- and plans it as a whole: one SELECT, STABLE, no SET, no SECURITY DEFINER.
CREATE OR REPLACE FUNCTION {schema}.messages(p_topic_id integer, p_first bigint DEFAULT 0, p_last bigint DEFAULT 9223372036854775807)
RETURNS SETOF {schema}.message
LANGUAGE sql STABLE AS $$
    SELECT m.* FROM {schema}.message m WHERE m.topic_id = p_topic_id AND m.message_offset >= p_first AND m.message_offset <= p_last
$$;

-- The same for a topic in the shared table, for cached plans: see below.
CREATE OR REPLACE FUNCTION {schema}.shared_messages(p_topic_id integer, p_first bigint, p_last bigint)
RETURNS SETOF {schema}.message_shared
LANGUAGE sql STABLE AS $$
    SELECT m.* FROM {schema}.message_shared m
    WHERE m.topic_id = p_topic_id AND m.message_offset >= p_first AND m.message_offset <= p_last
$$;

-- Appends a batch and returns its offsets. The caller has an xid. unnest returns the arrays in their order and nextval is called
-- once per row, so offsets rise with the batch.
CREATE OR REPLACE FUNCTION {schema}.append(
    p_topic_id integer, p_sequence regclass, p_now timestamptz, p_message_ids uuid[], p_keys text[], p_types text[], p_payloads bytea[],
    p_content_types text[], p_headers jsonb[], p_correlation_ids text[], OUT offsets bigint[]
)
LANGUAGE plpgsql AS $$
BEGIN
    WITH inserted AS (
        INSERT INTO {schema}.message (message_offset, created_at, topic_id, message_id, key, message_type, payload,
                                      content_type, headers, correlation_id)
        SELECT nextval(p_sequence), p_now, p_topic_id, u.m, u.k, u.t, u.p, u.c, u.h, u.r
        FROM unnest(p_message_ids, p_keys, p_types, p_payloads, p_content_types, p_headers, p_correlation_ids)
            AS u (m, k, t, p, c, h, r)
        RETURNING message_offset
    )
    SELECT array_agg(message_offset) INTO offsets FROM inserted;
END $$;

-- Appends one message and returns its offset.
CREATE OR REPLACE FUNCTION {schema}.append_one(
    p_topic_id integer, p_sequence regclass, p_now timestamptz, p_message_id uuid, p_key text, p_type text, p_payload bytea,
    p_content_type text, p_headers jsonb, p_correlation_id text, OUT message_offset bigint
)
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.message AS m (message_offset, created_at, topic_id, message_id, key, message_type, payload, content_type,
                                       headers, correlation_id)
    VALUES (nextval(p_sequence), p_now, p_topic_id, p_message_id, p_key, p_type, p_payload, p_content_type, p_headers, p_correlation_id)
    RETURNING m.message_offset INTO append_one.message_offset;
END $$;

-- The lowest xid of a running transaction that may own offsets of a topic, according to locks: a publisher holds ROW EXCLUSIVE on
-- the log, and on the topic's sequence, from before the first nextval() until its end. nextval() locks the sequence for the top
-- transaction, whatever savepoint or function it is called in and whether the value is cached or not, and PREPARE keeps the lock.
-- A transaction that only reads the sequence's last value has the sequence lock too, and one that publishes to other topics has
-- the lock of the log: only both together count. Null if there is none. So a long transaction that never publishes to the topic
-- keeps none of its gaps open. Call this before taking the snapshot that searches for rows: a lock is released only after the end
-- of its transaction is visible.
CREATE OR REPLACE FUNCTION {schema}.publisher_horizon(p_topic_id integer, p_below xid8) RETURNS xid8
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH held AS MATERIALIZED (
        SELECT l.locktype, l.relation, l.database, l.mode, l.granted, l.pid, l.virtualtransaction, l.transactionid FROM pg_locks l
        WHERE l.locktype IN ('relation', 'transactionid')
    ), publishers AS (
        SELECT l.virtualtransaction FROM held l
        WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
          AND l.relation IN ('{schema}.message'::regclass, (SELECT t.offsets FROM {schema}.topic t WHERE t.topic_id = p_topic_id))
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND l.pid IS DISTINCT FROM pg_backend_pid()
        GROUP BY l.virtualtransaction HAVING count(DISTINCT l.relation) = 2
    ), running AS (
        -- pg_locks shows 32 bits of an xid; the rest follows from p_below, which is near.
        SELECT p_below::text::bigint - ((p_below::text::bigint - x.transactionid::text::bigint + 2147483648) & 4294967295)
               + 2147483648 AS xid
        FROM held x
        WHERE x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted
          AND x.virtualtransaction IN (SELECT p.virtualtransaction FROM publishers p)
    )
    SELECT min(r.xid)::text::xid8 FROM running r
$$;

-- Statements of the head (functions/head.sql) on the log have two forms. For shared topics they name the shared table, with a
-- cached plan. For the others they are planned each time, with values: a cached plan on the partitioned log locks every partition
-- of every topic before it prunes any. The storage is read after the last offset: it changes only while a topic has no message
-- and no publisher. They are STABLE, so that a statement that calls two of them uses one snapshot, its own.

-- The offsets missing below rows of a topic in (p_after, p_until]; below the first of these rows, from p_head on.
CREATE OR REPLACE FUNCTION {schema}.missing_above(
    p_topic_id integer, p_shared boolean, p_head bigint, p_after bigint, p_until bigint,
    OUT missing int8multirange, OUT top bigint, OUT seen pg_snapshot
)
LANGUAGE plpgsql STABLE AS $$
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

-- Rows in those gaps of a topic that may have changed (a bound above p_changed, or recorded above p_since) or close now, and the
-- xid below which all transactions have ended as of the same snapshot: only both together prove that a gap is dead.
CREATE OR REPLACE FUNCTION {schema}.rows_in_gaps(
    p_topic_id integer, p_changed xid8, p_since bigint, p_until bigint, p_horizon xid8, OUT late int8multirange, OUT ended xid8
)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    -- OFFSET 0 fixes the order of the join: gap by gap, by the log's index. The other way round, every message of the topic
    -- would be compared with every gap.
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

-- The first stored offset of a span that was published at p_at or later; null if there is none. A binary search, because no index
-- has times: each step is one read by the log's key.
--
-- Exact where times rise with offsets. They do except for publishers that overlap: a time is read just before its offsets are
-- taken, so of two overlapping publishers one may have the earlier time and the higher offset, by no more offsets than are taken
-- during a statement. The binary search then ends at one of several offsets where times go from earlier to later. So the ten
-- thousand messages before it, the largest batch, are checked, and again before an offset found there: the lowest is the result,
-- and messages in between are delivered rather than skipped. Only if the server's clock was set back by more than that may
-- messages be skipped: the result is then any offset at which the times in the log pass p_at. Planned each time: see
-- functions/head.sql.
CREATE OR REPLACE FUNCTION {schema}.first_since(p_topic_id integer, p_first bigint, p_last bigint, p_at timestamptz) RETURNS bigint
LANGUAGE plpgsql
SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    -- Everything below v_low is earlier than p_at; v_high and everything above is not.
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

-- The last offset of a range that was published longer ago than an age; the one before the range if there is none.
CREATE OR REPLACE FUNCTION {schema}.last_older(
    p_topic_id integer, p_first bigint, p_last bigint, p_age_ms bigint, p_now {schema}.injected_time
) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce({schema}.first_since(p_topic_id, p_first, p_last, {schema}.before(coalesce(p_now, clock_timestamp()), p_age_ms)),
                    p_last + 1) - 1
$$;

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

-- How many messages of a topic are stored. Up to a million offsets they are counted; beyond, the result is the number of offsets
-- from the first to the last, which is never too low. Planned each time: see above.
CREATE OR REPLACE FUNCTION {schema}.count_stored(p_topic_id integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_first bigint;
    v_last bigint;
BEGIN
    SELECT min(m.message_offset), max(m.message_offset) INTO v_first, v_last FROM {schema}.message m WHERE m.topic_id = p_topic_id;
    IF v_last - v_first >= 1000000 THEN
        RETURN v_last - v_first + 1;
    END IF;
    RETURN (SELECT count(*) FROM {schema}.message m WHERE m.topic_id = p_topic_id);
END $$;

-- The lowest stored offsets of a set from an offset on, as many as a step removes: at most p_max, and their payloads are within the
-- budget (removal_bytes), except the last. Empty if there are none. Planned each time: see above.
CREATE OR REPLACE FUNCTION {schema}.lowest_stored(p_topic_id integer, p_offsets int8multirange, p_from bigint, p_max integer) RETURNS int8multirange
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_lowest int8multirange;
BEGIN
    EXECUTE 'SELECT coalesce(range_agg(int8range(q.message_offset, q.message_offset, ''[]'')), ''{}'')
             FROM (SELECT p.message_offset,
                          sum(p.bytes) OVER (ORDER BY p.message_offset ROWS UNBOUNDED PRECEDING) - p.bytes AS bytes_before
                   FROM (SELECT m.message_offset, pg_column_size(m.payload) AS bytes FROM {schema}.message m
                         WHERE m.topic_id = $1 AND m.message_offset >= $3 AND m.message_offset < $5 AND $2 @> m.message_offset
                         ORDER BY m.message_offset LIMIT $4) p) q
             WHERE q.bytes_before < {schema}.removal_bytes()'
    INTO v_lowest USING p_topic_id, p_offsets, p_from, p_max, upper(p_offsets);
    RETURN v_lowest;
END $$;

-- The lowest stored offset of a topic; null if there is none. Planned each time: see above.
CREATE OR REPLACE FUNCTION {schema}.first_stored(p_topic_id integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN (SELECT min(m.message_offset) FROM {schema}.message m WHERE m.topic_id = p_topic_id);
END $$;

-- Deletes the messages of a closed range, in whatever table they are; returns how many. Planned each time: see above.
CREATE OR REPLACE FUNCTION {schema}.delete_stored(p_topic_id integer, p_first bigint, p_last bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    EXECUTE 'DELETE FROM {schema}.message m WHERE m.topic_id = $1 AND m.message_offset BETWEEN $2 AND $3' USING p_topic_id, p_first, p_last;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- The key of a message, and the other messages of a set with that key and a higher offset. Planned each time: see above.
CREATE OR REPLACE FUNCTION {schema}.later_of_key(
    p_topic_id integer, p_offset bigint, p_offsets int8multirange, OUT key text, OUT later bigint[]
)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    EXECUTE 'SELECT max(m.key) FILTER (WHERE m.message_offset = $2),
                    coalesce(array_agg(m.message_offset ORDER BY m.message_offset) FILTER (WHERE m.message_offset > $2), ''{}'')
             FROM {schema}.message m
             WHERE m.topic_id = $1 AND m.message_offset BETWEEN $2 AND $4 AND $3 @> m.message_offset
               AND m.key = (SELECT x.key FROM {schema}.message x WHERE x.topic_id = $1 AND x.message_offset = $2)'
    INTO key, later USING p_topic_id, p_offset, p_offsets, upper(p_offsets) - 1;
END $$;

-- Those of some offsets whose messages are stored. Planned each time: see above.
CREATE OR REPLACE FUNCTION {schema}.stored_among(p_topic_id integer, p_offsets bigint[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_stored bigint[];
BEGIN
    EXECUTE 'SELECT array_agg(m.message_offset) FROM {schema}.message m WHERE m.topic_id = $1 AND m.message_offset = ANY ($2)'
    INTO v_stored USING p_topic_id, p_offsets;
    RETURN v_stored;
END $$;

-- Copies the messages of a range to the dead letters. The caller removes the range in the same transaction. Planned each time: see
-- above.
CREATE OR REPLACE FUNCTION {schema}.bury_range(
    p_subscription_id integer, p_topic_id integer, p_first bigint, p_last bigint, p_attempts integer, p_error text, p_owner text,
    p_now timestamptz
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'INSERT INTO {schema}.dead_letter (subscription_id, topic_id, message_offset, message_id, key, message_type, payload,
                                               content_type, headers, correlation_id, created_at, error, attempts, parked_by, buried_at)
             SELECT $1, $2, m.message_offset, m.message_id, m.key, m.message_type, m.payload,
                    m.content_type, m.headers, m.correlation_id, m.created_at, $6, $5, $7, $8
             FROM {schema}.message m WHERE m.topic_id = $2 AND m.message_offset BETWEEN $3 AND $4'
    USING p_subscription_id, p_topic_id, p_first, p_last, p_attempts, p_error,
          -- Read from an error in one case: a text that is no name must not keep the message from being buried.
          CASE WHEN octet_length(p_owner) BETWEEN 1 AND 255 THEN p_owner END, p_now;
END $$;

-- The table of a topic whose rows are deleted one by one: the partitions of a dedicated topic are dropped whole, except the rows
-- that were stored past them.
CREATE OR REPLACE FUNCTION {schema}.loose_table(p_topic {schema}.topic) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_topic.storage = 'shared' THEN 'message_shared'
                WHEN p_topic.partition = 'none' THEN 'message_t' || p_topic.topic_id
                ELSE 'message_t' || p_topic.topic_id || '_rest' END
$$;

-- Counts, before messages are removed, those that each subscription had not done.
CREATE OR REPLACE FUNCTION {schema}.misses(p_table text, p_topic_id integer, p_progress {schema}.progress[], p_gone int8multirange) RETURNS {schema}.miss[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    p {schema}.progress;
    v_miss {schema}.miss;
    v_misses {schema}.miss[] := '{}';
BEGIN
    FOREACH p IN ARRAY p_progress LOOP
        CONTINUE WHEN NOT p.pending && p_gone;
        EXECUTE format('SELECT $1, count(*), min(m.message_offset), max(m.message_offset) FROM unnest($2) r
            CROSS JOIN LATERAL (SELECT x.message_offset FROM {schema}.%I x
                WHERE x.topic_id = $3 AND x.message_offset >= lower(r) AND x.message_offset < upper(r) OFFSET 0) m', p_table)
            INTO v_miss USING p.subscription_id, p.pending * p_gone, p_topic_id;
        IF v_miss.messages > 0 THEN
            v_misses := v_misses || v_miss;
        END IF;
    END LOOP;
    RETURN v_misses;
END $$;

-- Reads the next p_max messages by the key of the table, and decides for each; fewer if the payloads of those to remove exceed the
-- budget (removal_bytes): then as many as it has room for, except for the last of them, as if p_max were that number. A message is removed if it has been done for long
-- enough (and is old enough, if it was published while no subscription counted), or if it is older than max_retention whether
-- done or not: by the clock if every subscription has read it, otherwise by its age in elapsed time.
CREATE OR REPLACE FUNCTION {schema}.candidates(
    p_topic {schema}.topic, p_topic_range {schema}.topic_range, r {schema}.retention_cutoffs, p_from bigint, p_max integer,
    -- The messages read: how many, the last, when the youngest of them was published, and whether the page was full: then there may
    -- be more behind them.
    OUT seen bigint, OUT seen_last bigint, OUT seen_at timestamptz, OUT page_full boolean,
    -- The ranges to remove, without messages that stay and without gaps; the first that stays; up to where all messages were read.
    OUT gone int8multirange, OUT kept bigint, OUT until bigint
)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_counting boolean := p_topic.tracking = 'reference_counting';
    v_table text := {schema}.loose_table(p_topic);
    v_kept int8multirange;
    v_oldest timestamptz;
    v_bytes bigint;
    v_fit integer;
BEGIN
    EXECUTE format('SELECT m.created_at FROM {schema}.%I m WHERE m.topic_id = $1 AND m.message_offset >= $2 ORDER BY m.message_offset LIMIT 1',
                   v_table) INTO v_oldest USING p_topic.topic_id, p_from;
    -- Times rise with offsets, except for publishers that overlap: if the first message is not too old, none has to be read for
    -- its age.
    until := CASE WHEN v_oldest <= r.aged_since OR v_counting THEN r.head ELSE least(greatest(r.done_until, upper(r.aged) - 1), r.head) END;
    EXECUTE format($q$
        SELECT count(*), max(c.message_offset), max(c.created_at), min(c.message_offset) FILTER (WHERE NOT c.gone),
               coalesce(range_agg(int8range(c.message_offset, c.message_offset, '[]')) FILTER (WHERE NOT c.gone), '{}'),
               sum(c.bytes) FILTER (WHERE c.gone)
        FROM (SELECT q.message_offset, q.created_at, q.bytes,
                     ($11 @> q.message_offset OR q.created_at <= $4 AND $12 @> q.message_offset
                      OR (q.message_offset > $5 OR q.created_at <= $6) AND $13 @> q.message_offset AND %s) IS TRUE AS gone
              FROM (SELECT m.message_offset, m.created_at, pg_column_size(m.payload) AS bytes FROM {schema}.%I m
                    WHERE m.topic_id = $1 AND m.message_offset BETWEEN $2 AND $3 ORDER BY m.message_offset LIMIT $7) q
              -- OFFSET 0: otherwise "gone" would be evaluated wherever it is used.
              OFFSET 0) c
        $q$,
        -- In reference counting any message that is done, whatever is pending before it: completed in its record for long enough,
        -- and done by all subscriptions that count now, some of which may have begun later.
        CASE WHEN v_counting THEN 'NOT $9::int8multirange @> q.message_offset AND (SELECT x.completed_at <= $8
             FROM {schema}.completion_record x WHERE x.topic_id = $1 AND x.message_offset = q.message_offset)'
             ELSE 'q.message_offset <= $10' END, v_table)
    INTO seen, seen_last, seen_at, kept, v_kept, v_bytes
    USING p_topic.topic_id, p_from, until, r.aged_since, p_topic_range.zero_until, r.zero_since, p_max, r.kept_since, r.pending,
          r.done_until, r.aged, r.read, r.fit;
    -- A running sum only where it matters: for small messages it would take as long as all the rest of this. Messages that stay take
    -- nothing of the budget: a step would remove nothing where many of them come first.
    IF v_bytes > {schema}.removal_bytes() THEN
        EXECUTE format('SELECT count(*)
            FROM (SELECT sum(p.bytes) OVER (ORDER BY p.message_offset ROWS UNBOUNDED PRECEDING) - p.bytes AS bytes_before
                  FROM (SELECT m.message_offset, CASE WHEN $5 @> m.message_offset THEN 0 ELSE pg_column_size(m.payload) END AS bytes
                        FROM {schema}.%I m
                        WHERE m.topic_id = $1 AND m.message_offset >= $2 ORDER BY m.message_offset LIMIT $3) p) q
            WHERE q.bytes_before < $4', v_table) INTO v_fit USING p_topic.topic_id, p_from, seen, {schema}.removal_bytes(), v_kept;
        IF v_fit < seen THEN
            SELECT c.* INTO seen, seen_last, seen_at, page_full, gone, kept, until
            FROM {schema}.candidates(p_topic, p_topic_range, r, p_from, v_fit) c;
            RETURN;
        END IF;
    END IF;
    page_full := seen = p_max;
    IF page_full THEN
        until := seen_last;
    END IF;
    gone := int8multirange(int8range(p_from, greatest(seen_last + 1, p_from))) - v_kept - r.gaps;
    kept := least(kept, lower(int8multirange(int8range(p_from, NULL)) * r.gaps));
END $$;

-- Deletes the messages of a closed range from the topic's loose_table; returns how many.
CREATE OR REPLACE FUNCTION {schema}.delete_messages(p_topic {schema}.topic, p_first bigint, p_last bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    EXECUTE format('DELETE FROM {schema}.%I m WHERE m.topic_id = $1 AND m.message_offset BETWEEN $2 AND $3', {schema}.loose_table(p_topic))
        USING p_topic.topic_id, p_first, p_last;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
