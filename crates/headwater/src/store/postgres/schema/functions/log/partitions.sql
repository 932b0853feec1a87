-- Dedicated storage: tables of a single topic, created ahead and dropped behind.
--
-- message_t<id> has all rows of the topic. If it is partitioned by offset it has message_t<id>_o<first> for each range, and
-- message_t<id>_rest for offsets outside of all ranges: publishing never fails for lack of a partition, and retention deletes
-- from it row by row, as from the shared table.
--
-- Creating and dropping need locks that an open transaction of a publisher or reader can block, and other sessions queue behind
-- them while they wait. So they wait only briefly, and are otherwise left to the next run; everything else continues.

-- The vacuum settings of the shared table.
CREATE OR REPLACE FUNCTION {schema}.log_table_settings() RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT 'autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.1'
$$;

-- Creates the table for a range of offsets. It is created separately and attached: that does not block publishers, unless an open
-- transaction has stored rows past the partitions.
CREATE OR REPLACE FUNCTION {schema}.create_partition(p_topic_id integer, p_first bigint, p_last bigint, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_parent text := 'message_t' || p_topic_id;
    v_table text := 'message_t' || p_topic_id || '_o' || p_first;
BEGIN
    EXECUTE format('CREATE TABLE {schema}.%I (LIKE {schema}.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE, PRIMARY KEY (topic_id, message_offset)) WITH (%s)',
                   v_table, v_parent, {schema}.log_table_settings());
    EXECUTE format('ALTER TABLE {schema}.%I ATTACH PARTITION {schema}.%I FOR VALUES FROM (%s) TO (%s)',
                   v_parent, v_table, p_first, p_last + 1);
    INSERT INTO {schema}.partition (topic_id, first_offset, last_offset, table_name, created_at)
    VALUES (p_topic_id, p_first, p_last, v_table, p_now);
END $$;

-- The number of offsets in a partition. By time: as many as are published in that time at the present rate, within limits.
CREATE OR REPLACE FUNCTION {schema}.partition_size(p_topic {schema}.topic, p_rate double precision) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_topic.partition
        WHEN 'rows' THEN p_topic.partition_rows
        ELSE least(greatest(ceil(coalesce(p_rate * CASE p_topic.partition WHEN 'hour' THEN 3600 WHEN 'day' THEN 86400 ELSE 2592000 END,
                                          100000)), 1000), 100000000)::bigint
    END
$$;

-- Makes an autovacuum of the shared table yield, which takes PostgreSQL a second, with a lock mode that does not block publishers
-- and readers: the short waits for the table itself would be too short for that.
CREATE OR REPLACE FUNCTION {schema}.hold_vacuum() RETURNS void
LANGUAGE plpgsql SET lock_timeout = '3s' AS $$
BEGIN
    LOCK TABLE ONLY {schema}.message_shared IN SHARE UPDATE EXCLUSIVE MODE;
END $$;

-- Locks the whole log. While this waits for an open transaction every publish and claim waits behind it: so it fails soon, as
-- busy, and the client retries after a pause in which the others continue.
CREATE OR REPLACE FUNCTION {schema}.lock_log() RETURNS void
LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
BEGIN
    LOCK TABLE {schema}.message IN ACCESS EXCLUSIVE MODE;
END $$;

-- Creates the storage that the settings of a topic without messages name, and drops its former storage. Runs under the lock of
-- the topic range, or in the transaction that creates the topic. The new table is created separately and attached last, so publishers
-- of other topics continue; the shared table is locked while the server verifies that it has no rows of the topic, which takes no
-- time if the topic was created with dedicated tables. An open transaction on the shared table can block that: then this fails as
-- busy, and the client retries, as with lock_log.
CREATE OR REPLACE FUNCTION {schema}.make_storage(p_topic_id integer) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    t {schema}.topic;
    v_table text := 'message_t' || p_topic_id;
    v_first bigint := {schema}.last_taken(p_topic_id) + 1;
    v_size bigint;
BEGIN
    SELECT x.* INTO STRICT t FROM {schema}.topic x WHERE x.topic_id = p_topic_id;
    IF EXISTS (SELECT FROM {schema}.message m WHERE m.topic_id = p_topic_id) THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
            'invalid storage: topic %s has messages; storage changes only while it has none', t.name);
    END IF;
    PERFORM {schema}.hold_vacuum();
    IF to_regclass('{schema}.' || v_table) IS NOT NULL THEN
        EXECUTE format('DROP TABLE {schema}.%I', v_table);
    END IF;
    DELETE FROM {schema}.partition x WHERE x.topic_id = p_topic_id;
    IF t.storage = 'shared' AND p_topic_id >= 1000000000 THEN
        -- Its rows are stored in the shared table from now on. For tables attached later the server then searches the shared table.
        ALTER TABLE {schema}.message_shared DROP CONSTRAINT IF EXISTS message_shared_numbers;
    END IF;
    IF t.storage = 'dedicated' THEN
        EXECUTE format('CREATE TABLE {schema}.%I (LIKE {schema}.message INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE, PRIMARY KEY (topic_id, message_offset)) %s',
                       v_table, CASE t.partition WHEN 'none' THEN format('WITH (%s)', {schema}.log_table_settings())
                                ELSE 'PARTITION BY RANGE (message_offset)' END);
        IF t.partition <> 'none' THEN
            EXECUTE format('CREATE TABLE {schema}.%I PARTITION OF {schema}.%I DEFAULT WITH (%s)', v_table || '_rest', v_table,
                           {schema}.log_table_settings());
            v_size := {schema}.partition_size(t, NULL);
            FOR i IN 0..2 LOOP
                PERFORM {schema}.create_partition(p_topic_id, v_first + i * v_size, v_first + (i + 1) * v_size - 1, clock_timestamp());
            END LOOP;
        END IF;
        EXECUTE format('ALTER TABLE {schema}.message ATTACH PARTITION {schema}.%I FOR VALUES IN (%s)', v_table, p_topic_id);
    END IF;
END $$;

-- Measures the rate of offsets, over at least a minute.
CREATE OR REPLACE FUNCTION {schema}.measure_rate(p_topic_range {schema}.topic_range, p_taken bigint, p_now timestamptz) RETURNS double precision
LANGUAGE plpgsql AS $$
DECLARE
    v_seconds double precision := extract(epoch FROM p_now - p_topic_range.rate_at);
    v_rate double precision := p_topic_range.rate;
BEGIN
    IF v_seconds IS NOT NULL AND v_seconds BETWEEN 0 AND 59 THEN
        -- A higher rate counts at once; a lower rate only after a minute.
        RETURN greatest(v_rate, (p_taken - p_topic_range.rate_offset) / 60.0);
    END IF;
    IF v_seconds > 0 THEN
        v_rate := (p_taken - p_topic_range.rate_offset) / v_seconds;
    END IF;
    UPDATE {schema}.topic_range e SET rate_offset = p_taken, rate_at = p_now, rate = v_rate WHERE e.topic_id = p_topic_range.topic_id;
    RETURN v_rate;
END $$;

-- Creates partitions until two are ahead, and they cover two partitions of the size for the present rate, and the two largest
-- batches. A range that may already have rows past the partitions is skipped: new partitions begin beyond the last offset taken,
-- with a margin for offsets taken meanwhile. So a new partition covers offsets that no running statement has. (A statement whose
-- rows were routed past the partitions would wait for this, find that they now belong to the new partition, and fail, to be
-- retried.) This can still happen only if batches arrive faster than the margin allows.
CREATE OR REPLACE FUNCTION {schema}.create_ahead(p_topic {schema}.topic, p_topic_range {schema}.topic_range, p_now timestamptz, OUT created bigint, OUT locked boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_taken bigint := {schema}.last_taken(p_topic.topic_id);
    v_rate double precision := {schema}.measure_rate(p_topic_range, v_taken, p_now);
    v_size bigint := {schema}.partition_size(p_topic, v_rate);
    v_needed bigint := greatest(2 * v_size, least(ceil(coalesce(v_rate, 0) * 120), 100000000)::bigint, 20000);
    v_first bigint;
BEGIN
    created := 0;
    locked := false;
    FOR i IN 1..32 LOOP
        SELECT coalesce(max(x.last_offset), 0) + 1 INTO v_first FROM {schema}.partition x WHERE x.topic_id = p_topic.topic_id;
        EXIT WHEN v_first - 1 - v_taken >= v_needed
            AND (SELECT count(*) FROM {schema}.partition x WHERE x.topic_id = p_topic.topic_id AND x.first_offset > v_taken) >= 2;
        IF v_first <= v_taken + 1 THEN
            v_first := v_taken + greatest(20000, ceil(coalesce(v_rate, 0) * 10)::bigint);
            v_first := (v_first / 1000 + 1) * 1000 + 1;
        END IF;
        BEGIN
            PERFORM {schema}.create_partition(p_topic.topic_id, v_first, v_first + v_size - 1, p_now);
            created := created + 1;
        EXCEPTION
            -- A transaction has locked the table past the partitions, or has just stored rows there that belong to this partition.
            WHEN lock_not_available OR deadlock_detected OR check_violation THEN
                locked := true;
                RETURN;
        END;
    END LOOP;
END $$;

-- The number of messages in a partition. A large one is counted row by row only if a subscription missed messages (p_exactly):
-- then statistics are not enough, because they may be as old as the table. Counting more than 8 GiB would exceed the statement
-- timeout, and the partition would never be dropped: then the result is the number of offsets from its first message to its last,
-- which is never too low. Otherwise it is the estimate of the statistics, limited to the partition's offsets, or all of these if
-- there are no statistics yet; 0 only if it is empty.
CREATE OR REPLACE FUNCTION {schema}.count_in(x {schema}.partition, p_exactly boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
    v_span bigint := x.last_offset - x.first_offset + 1;
    v_table regclass := format('{schema}.%I', x.table_name)::regclass;
BEGIN
    IF v_span <= 100000 OR p_exactly AND pg_relation_size(v_table) <= 8589934592 THEN
        EXECUTE format('SELECT count(*) FROM {schema}.%I', x.table_name) INTO v_count;
    ELSIF p_exactly THEN
        EXECUTE format('SELECT coalesce(max(m.message_offset) - min(m.message_offset) + 1, 0) FROM {schema}.%I m WHERE m.topic_id = $1',
                       x.table_name) INTO v_count USING x.topic_id;
    ELSE
        EXECUTE format('SELECT count(*) FROM (SELECT FROM {schema}.%I LIMIT 1) q', x.table_name) INTO v_count;
        SELECT v_count * CASE WHEN c.reltuples < 0 THEN v_span ELSE greatest(least(c.reltuples::bigint, v_span), 1) END INTO v_count
        FROM pg_class c WHERE c.oid = v_table;
    END IF;
    RETURN v_count;
END $$;

-- Whether a partition may be dropped, by the rules of "clean": by its last offset, and where age matters by its youngest rows.
-- Times rise with offsets except for publishers that overlap, so the youngest rows are among the last thousand.
CREATE OR REPLACE FUNCTION {schema}.may_drop(p_topic {schema}.topic, p_topic_range {schema}.topic_range, r {schema}.retention_cutoffs, x {schema}.partition) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_range int8multirange := {schema}.span(x.first_offset, x.last_offset);
    v_youngest timestamptz;
    v_done boolean;
    v_below boolean;
BEGIN
    IF x.last_offset > r.head OR r.gaps && int8range(x.first_offset, x.last_offset, '[]') THEN
        RETURN false;
    END IF;
    IF p_topic.tracking = 'reference_counting' THEN
        -- Completion records are deleted below the first stored offset: so no message may be left below, past the partitions.
        EXECUTE format('SELECT EXISTS (SELECT FROM {schema}.%I m WHERE m.topic_id = $1 AND m.message_offset < $2)', {schema}.loose_table(p_topic))
            INTO v_below USING p_topic.topic_id, x.first_offset;
        IF v_below THEN
            RETURN false;
        END IF;
    END IF;
    IF v_range <@ r.aged THEN
        RETURN true;
    END IF;
    v_done := v_range <@ (r.aged + {schema}.span(1, r.done_until) * r.fit)
        AND (p_topic.tracking = 'offset_watermark' OR x.last_offset < p_topic_range.pending_from);
    IF v_done AND x.first_offset > p_topic_range.zero_until THEN
        RETURN true;
    END IF;
    EXECUTE format('SELECT max(q.created_at) FROM (SELECT m.created_at FROM {schema}.%I m ORDER BY m.topic_id DESC, m.message_offset DESC LIMIT 1000) q',
                   x.table_name) INTO v_youngest;
    RETURN v_youngest IS NULL OR v_range <@ r.read AND coalesce(v_youngest <= r.aged_since, false) OR v_done AND v_youngest <= r.zero_since;
END $$;

-- Drops a partition: messages that subscriptions had not done are counted first. Returns the number of removed messages, and what
-- groups missed, dead ones too.
CREATE OR REPLACE FUNCTION {schema}.drop_partition(
    p_topic {schema}.topic, r {schema}.retention_cutoffs, x {schema}.partition, OUT removed bigint, OUT missed_groups text[], OUT missed bigint[],
    OUT missed_first bigint[], OUT missed_last bigint[]
)
LANGUAGE plpgsql AS $$
DECLARE
    v_range int8range := int8range(x.first_offset, x.last_offset, '[]');
    v_misses {schema}.miss[];
    v_first bigint;
BEGIN
    -- Before the tables are locked, because it may take a while: no message is added to offsets that are final, and a session that
    -- removes messages waits for the topic range.
    removed := {schema}.count_in(x, EXISTS (SELECT FROM unnest(r.progress) p WHERE p.pending && v_range));
    EXECUTE format('LOCK TABLE ONLY {schema}.%I, ONLY {schema}.%I, ONLY {schema}.%I IN ACCESS EXCLUSIVE MODE', 'message_t' || x.topic_id,
                   {schema}.loose_table(p_topic), x.table_name);
    -- A subscription for which the whole partition is pending misses all removed messages.
    SELECT coalesce(array_agg(ROW(p.subscription_id, removed, x.first_offset, x.last_offset)::{schema}.miss), '{}')
           || {schema}.misses(x.table_name, x.topic_id,
                              ARRAY(SELECT q FROM unnest(r.progress) q WHERE NOT q.pending @> v_range), int8multirange(v_range))
    INTO v_misses FROM unnest(r.progress) p WHERE p.pending @> v_range AND removed > 0;
    EXECUTE format('DROP TABLE {schema}.%I', x.table_name);
    DELETE FROM {schema}.partition q WHERE q.topic_id = x.topic_id AND q.first_offset = x.first_offset;
    EXECUTE format('SELECT min(m.message_offset) FROM {schema}.%I m WHERE m.topic_id = $1', {schema}.loose_table(p_topic))
        INTO v_first USING p_topic.topic_id;
    v_first := least(v_first, r.head + 1, lower(r.gaps), (SELECT min(q.first_offset) FROM {schema}.partition q WHERE q.topic_id = x.topic_id));
    UPDATE {schema}.topic_range e SET first_offset = greatest(e.first_offset, v_first), removed = e.removed + drop_partition.removed
    WHERE e.topic_id = x.topic_id RETURNING e.first_offset INTO v_first;
    SELECT array_agg(m.group_name), array_agg(m.missed), array_agg(m.missed_first), array_agg(m.missed_last)
    INTO missed_groups, missed, missed_first, missed_last FROM {schema}.follow_log(r.progress, v_misses, v_first) m;
END $$;

-- Drops partitions behind, lowest first, as long as they may be dropped. A partition whose locks are not available soon, or would
-- deadlock, stays for the next run, unchanged. Claims of the subscriptions that are moved are excluded before the first table is
-- locked: claims read the log, so otherwise they would wait for that table while this waits for them.
CREATE OR REPLACE FUNCTION {schema}.drop_behind(
    p_topic {schema}.topic, p_topic_range {schema}.topic_range, p_now timestamptz,
    OUT dropped bigint, OUT removed bigint, OUT locked boolean, OUT missed_groups text[], OUT missed bigint[],
    OUT missed_first bigint[], OUT missed_last bigint[]
)
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.retention_cutoffs := {schema}.retention_cutoffs_of(p_topic, p_topic_range, p_now);
    x {schema}.partition;
    v_behind {schema}.partition[] := '{}';
    v_until bigint := r.head + 1;
    v_gone record;
BEGIN
    dropped := 0;
    removed := 0;
    locked := false;
    FOR x IN SELECT q.* FROM {schema}.partition q WHERE q.topic_id = p_topic.topic_id ORDER BY q.first_offset LIMIT 17 LOOP
        IF cardinality(v_behind) = 16 OR NOT {schema}.may_drop(p_topic, p_topic_range, r, x) THEN
            v_until := least(v_until, x.first_offset);
            EXIT;
        END IF;
        v_behind := v_behind || x;
    END LOOP;
    IF cardinality(v_behind) = 0 THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM {schema}.hold_claims(ARRAY(SELECT p.subscription_id FROM unnest(r.progress) p WHERE lower(p.pending) < v_until), true);
    EXCEPTION
        WHEN lock_not_available OR deadlock_detected THEN
            locked := true;
            RETURN;
    END;
    FOREACH x IN ARRAY v_behind LOOP
        BEGIN
            SELECT * INTO v_gone FROM {schema}.drop_partition(p_topic, r, x);
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN
                locked := true;
                EXIT;
        END;
        dropped := dropped + 1;
        removed := removed + v_gone.removed;
        missed_groups := missed_groups || v_gone.missed_groups;
        missed := missed || v_gone.missed;
        missed_first := missed_first || v_gone.missed_first;
        missed_last := missed_last || v_gone.missed_last;
    END LOOP;
END $$;

-- One run over the partitions of a topic.
CREATE OR REPLACE FUNCTION {schema}.keep_partitions(
    p_topic_id integer, p_lock_ms integer, p_now {schema}.injected_time,
    OUT topic text, OUT created bigint, OUT dropped bigint, OUT removed bigint, OUT ahead bigint, OUT locked boolean,
    OUT missed_groups text[], OUT missed bigint[], OUT missed_first bigint[], OUT missed_last bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    e {schema}.topic_range;
    t {schema}.topic;
    v_step record;
    v_timeout text := current_setting('lock_timeout');
BEGIN
    SELECT x.* INTO t FROM {schema}.topic x WHERE x.topic_id = p_topic_id;
    topic := t.name;
    SELECT 0, 0, 0, 0, false INTO created, dropped, removed, ahead, locked;
    IF t.storage = 'shared' OR t.partition = 'none' THEN
        RETURN;
    END IF;
    e := {schema}.begin_maintenance(p_topic_id);
    -- Set only now: the topic range's lock is waited for as by any other statement. Never unlimited, because others wait behind these
    -- locks.
    PERFORM set_config('lock_timeout', greatest(least(p_lock_ms, 1000), 1)::text, true);
    SELECT x.* INTO STRICT t FROM {schema}.topic x WHERE x.topic_id = p_topic_id;
    SELECT * INTO v_step FROM {schema}.create_ahead(t, e, v_now);
    created := v_step.created;
    locked := v_step.locked;
    SELECT * INTO v_step FROM {schema}.drop_behind(t, e, p_now);
    dropped := v_step.dropped;
    removed := v_step.removed;
    locked := locked OR v_step.locked;
    missed_groups := v_step.missed_groups;
    missed := v_step.missed;
    missed_first := v_step.missed_first;
    missed_last := v_step.missed_last;
    SELECT count(*) INTO ahead FROM {schema}.partition x
    WHERE x.topic_id = p_topic_id AND x.first_offset > {schema}.last_taken(p_topic_id);
    PERFORM set_config('lock_timeout', v_timeout, true);
END $$;

-- A step of the removal of a deleted topic's messages: of a dedicated topic one table, of a shared one at most p_max rows, and fewer
-- if their payloads are large. Returns how many tables or rows, 0 once none is left. An autovacuum of the table is made to yield first: no other session uses it. Then
-- the wait is short, because for its last table the whole log is locked.
CREATE OR REPLACE FUNCTION {schema}.remove_stored(p_topic_id integer, p_max integer) RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '3s' AS $$
DECLARE
    v_table regclass := to_regclass('{schema}.message_t' || p_topic_id);
    v_count bigint;
BEGIN
    IF v_table IS NULL THEN
        DELETE FROM {schema}.message_shared m WHERE m.ctid = ANY (ARRAY(
            SELECT q.row FROM (
                SELECT p.row, sum(p.bytes) OVER (ORDER BY p.message_offset ROWS UNBOUNDED PRECEDING) - p.bytes AS bytes_before
                FROM (SELECT x.ctid AS row, x.message_offset, pg_column_size(x.payload) AS bytes FROM {schema}.message_shared x
                      WHERE x.topic_id = p_topic_id ORDER BY x.message_offset LIMIT p_max) p) q
            WHERE q.bytes_before < {schema}.removal_bytes()));
        GET DIAGNOSTICS v_count = ROW_COUNT;
        RETURN v_count;
    END IF;
    v_table := coalesce((SELECT i.inhrelid::regclass FROM pg_inherits i WHERE i.inhparent = v_table ORDER BY i.inhrelid LIMIT 1), v_table);
    EXECUTE format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', v_table);
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE format('DROP TABLE %s', v_table);
    RETURN 1;
END $$;

-- Whether rows of a topic were stored past its partitions; for roles without rights on the table.
CREATE OR REPLACE FUNCTION {schema}.went_past(p_topic_id integer) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_found boolean := false;
BEGIN
    IF to_regclass('{schema}.message_t' || p_topic_id || '_rest') IS NOT NULL THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM {schema}.%I)', 'message_t' || p_topic_id || '_rest') INTO v_found;
    END IF;
    RETURN v_found;
END $$;
