-- Completion records: how they are derived from cursors and outstanding ranges, and why that is correct.
--
-- An offset is done for a subscription if it is below the next offset of each of its lanes and in none of its outstanding
-- ranges. Publishing, claiming and settling write no record; "track" updates the records from cursors and ranges.
--
-- What is read stays true for as long as the topic range's lock is held:
--
--   1. A claim moves a cursor and inserts the range it moved over in one transaction, and a settlement removes and
--      inserts parts of an outstanding range in one transaction. So the set of done offsets only grows by them, in any snapshot.
--   2. An operation that makes an offset not done again (redrive, seek, a resurrection that goes back) or adds a subscription
--      that has not done it (subscribe) takes the topic range's lock first, and reads only after that.
--   3. Only a late message of a recorded gap becomes outstanding without that lock. So offsets in recorded gaps never count as
--      done here. The gap is deleted and the outstanding range inserted in one transaction: a snapshot sees one or the other.
--      And a gap is recorded in the transaction that moves the head across it, so a gap that is missing in a snapshot lies
--      above the head of that snapshot.
--
-- Therefore: one statement takes the lock; the next one, with its own snapshot, reads head, gaps, cursors and outstanding ranges
-- together; everything after it uses that result. Where statements share one snapshot (REPEATABLE READ) it would be older than
-- the lock: that is refused.
--
-- A step is one transaction: if it is killed before its commit, nothing of it has happened, and it can be repeated. A second run
-- finds nothing to do: bits are set to their right value, not counted up.

-- Splits a span into segments in which two sets of bits are constant. For each bit, p_ones and p_twos are the offsets at which it
-- is in the first and in the second set. The sum of the weights of the bits at an offset is their bitmap: the weight of bit 63 is
-- minus two to the 63rd, as in two's complement.
CREATE OR REPLACE FUNCTION {schema}.segments(p_span int8multirange, p_bits smallint[], p_ones int8multirange[], p_twos int8multirange[])
RETURNS TABLE (first_offset bigint, last_offset bigint, one bigint, two bigint)
LANGUAGE sql IMMUTABLE AS $$
    WITH piece AS (
        SELECT r, 1 AS inside, 0::numeric AS one, 0::numeric AS two FROM unnest(p_span) r
        UNION ALL
        SELECT r, 0, (1::bigint << u.bit)::numeric, 0 FROM unnest(p_bits, p_ones) AS u (bit, ranges), unnest(u.ranges * p_span) r
        UNION ALL
        SELECT r, 0, 0, (1::bigint << u.bit)::numeric FROM unnest(p_bits, p_twos) AS u (bit, ranges), unnest(u.ranges * p_span) r
    ), edge AS (
        SELECT lower(r) AS at, inside, one, two FROM piece
        UNION ALL
        SELECT upper(r), -inside, -one, -two FROM piece
    ), change AS (
        SELECT at, sum(inside) AS inside, sum(one) AS one, sum(two) AS two FROM edge GROUP BY at
    ), segment AS (
        SELECT at, lead(at) OVER w - 1 AS last, sum(inside) OVER w AS inside, sum(one) OVER w AS one, sum(two) OVER w AS two
        FROM change WINDOW w AS (ORDER BY at)
    )
    SELECT at, last, one::bigint, two::bigint FROM segment WHERE inside > 0 ORDER BY at
$$;

-- Creates records for the offsets of a span without recorded gaps. Only late messages may already have a record (record_late),
-- and no more can appear while this runs: so one query finds them, and the rest is inserted without the cost of ON CONFLICT.
-- Existing records get the groups that began since. Returns how many were created and how many of the span are complete.
CREATE OR REPLACE FUNCTION {schema}.make_records(
    p_topic_id integer, p_span int8multirange, p_progress {schema}.progress[], p_now timestamptz, OUT made bigint, OUT completed bigint
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_bits smallint[];
    v_required int8multirange[];
    v_done int8multirange[];
    v_there int8multirange;
    s record;
    v_count bigint;
BEGIN
    made := 0;
    completed := 0;
    -- Required from the group's start, and for late messages before it that were handed out to the group. A late message that the
    -- group has done since is held no more, but its record requires the group: so what is done counts wherever it is required.
    SELECT array_agg(p.bit), array_agg(int8multirange(int8range(p.required_from, NULL)) + p.held), array_agg(p_span - p.pending)
    INTO v_bits, v_required, v_done
    FROM unnest(p_progress) p
    WHERE p.bit IS NOT NULL AND p.counts;
    SELECT coalesce(range_agg(int8range(r.message_offset, r.message_offset, '[]')), '{}') INTO v_there FROM {schema}.completion_record r
    WHERE r.topic_id = p_topic_id AND r.message_offset >= lower(p_span) AND r.message_offset < upper(p_span);
    FOR s IN SELECT * FROM {schema}.segments(p_span - v_there, v_bits, v_required, v_done) LOOP
        INSERT INTO {schema}.completion_record (topic_id, message_offset, required, completed, completed_at)
        SELECT p_topic_id, m.message_offset, s.one, s.two & s.one, CASE WHEN s.one = s.two & s.one THEN p_now END
        FROM {schema}.messages(p_topic_id, s.first_offset, s.last_offset) m;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        made := made + v_count;
        completed := completed + CASE WHEN s.one = s.two & s.one THEN v_count ELSE 0 END;
    END LOOP;
    FOR s IN SELECT * FROM {schema}.segments(p_span * v_there, v_bits, v_required, v_done) LOOP
        UPDATE {schema}.completion_record r
        SET required = r.required | s.one, completed = (r.completed | s.two) & (r.required | s.one),
            completed_at = CASE WHEN (r.completed | s.two) & (r.required | s.one) = r.required | s.one THEN p_now END
        WHERE r.topic_id = p_topic_id AND r.message_offset BETWEEN s.first_offset AND s.last_offset AND r.completed_at IS NULL;
    END LOOP;
END $$;

-- Creates records of late messages, in the transaction that hands them out (watch_gaps), under the lock of the head. No group has
-- done them yet: a group that requires one has just got it, or has not reached it. Such a record may be above the tracked
-- offsets; then tracking finds it later. A group that dies or begins to count waits for the head's lock, so the record of each
-- late message is either created before that, or created with the group's new state.
CREATE OR REPLACE FUNCTION {schema}.record_late(p_topic_id integer, p_late int8multirange) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO {schema}.completion_record (topic_id, message_offset, required, completed, completed_at)
    SELECT t.topic_id, n, b.bits, 0, CASE WHEN b.bits = 0 THEN clock_timestamp() END
    FROM {schema}.topic t, unnest(p_late) r, generate_series(lower(r), upper(r) - 1) n
    CROSS JOIN LATERAL (
        SELECT coalesce(bit_or(1::bigint << p.bit), 0) AS bits FROM {schema}.progress_list(p_topic_id) p
        WHERE p.bit IS NOT NULL AND p.counts
          AND (p.required_from <= n OR p.held @> n)
    ) b
    WHERE t.topic_id = p_topic_id AND t.tracking = 'reference_counting'
    ON CONFLICT (topic_id, message_offset) DO NOTHING
$$;

-- Sets bits for what groups have done since the last step, and clears them for what is not done any more: at most p_max offsets,
-- lowest first, each pending record once for all groups. p_gaps and p_progress are of one snapshot. Everything up to "cut" is
-- applied, or everything if it is null.
CREATE OR REPLACE FUNCTION {schema}.apply_progress(
    p_topic_range {schema}.topic_range, p_gaps int8multirange, p_progress {schema}.progress[], p_max bigint, p_now timestamptz,
    OUT dealt bigint, OUT changed bigint, OUT completed bigint, OUT cut bigint
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_span int8multirange := int8multirange(int8range(p_topic_range.first_offset, greatest(p_topic_range.tracked_until + 1, p_topic_range.first_offset)));
    v_touched int8multirange;
    v_bits smallint[];
    v_set int8multirange[];
    v_unset int8multirange[];
    s record;
    v_changed bigint;
    v_completed bigint;
BEGIN
    dealt := 0;
    changed := 0;
    completed := 0;
    SELECT array_agg(p.bit), array_agg(q.done - p.applied), array_agg(p.applied * v_span - q.done),
           range_agg((q.done - p.applied) + (p.applied * v_span - q.done))
    INTO v_bits, v_set, v_unset, v_touched
    FROM unnest(p_progress) p
    CROSS JOIN LATERAL (SELECT v_span - p.pending - p_gaps AS done) q
    WHERE p.bit IS NOT NULL AND p.counts;
    IF v_touched IS NULL OR isempty(v_touched) THEN
        RETURN;
    END IF;
    -- The offset at which the budget is used up; null if it is not.
    SELECT min(upper(q.r) - 1 - (q.total - p_max)) FILTER (WHERE q.total > p_max), least(max(q.total), p_max)
    INTO cut, dealt
    FROM (SELECT r, sum(upper(r) - lower(r)) OVER (ORDER BY lower(r)) AS total FROM unnest(v_touched) r) q;
    v_touched := v_touched * int8multirange(int8range(NULL, cut, '(]'));
    FOR s IN SELECT * FROM {schema}.segments(v_touched, v_bits, v_set, v_unset) LOOP
        WITH new AS (
            UPDATE {schema}.completion_record r
            SET completed = (r.completed | s.one) & ~s.two & r.required,
                completed_at = CASE WHEN (r.completed | s.one) & ~s.two & r.required = r.required THEN p_now END
            WHERE r.topic_id = p_topic_range.topic_id AND r.message_offset BETWEEN s.first_offset AND s.last_offset
              AND r.completed_at IS NULL AND (r.completed | s.one) & ~s.two & r.required <> r.completed
            RETURNING r.completed_at
        )
        SELECT count(*), count(new.completed_at) INTO v_changed, v_completed FROM new;
        changed := changed + v_changed;
        completed := completed + v_completed;
    END LOOP;
END $$;

-- Removes groups that no longer count from pending records, at most p_max records. No session adds such a group to a record: adding
-- needs the topic range's lock or the head's, and stop_counting waits for both.
CREATE OR REPLACE FUNCTION {schema}.release_records(
    p_topic_range {schema}.topic_range, p_max bigint, p_now timestamptz, OUT changed bigint, OUT completed bigint, OUT more boolean
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    s record;
    v_from bigint;
    v_last bigint;
    v_rows bigint;
    v_left bigint := p_max;
    v_changed bigint;
    v_completed bigint;
BEGIN
    changed := 0;
    completed := 0;
    more := false;
    FOR s IN SELECT x.subscription_id, 1::bigint << x.bit AS mask, x.released_until FROM {schema}.subscription x
             WHERE x.topic_id = p_topic_range.topic_id AND x.released_until IS NOT NULL AND x.bit IS NOT NULL
               AND x.state NOT IN ('active', 'paused') ORDER BY x.subscription_id
    LOOP
        IF v_left <= 0 THEN
            more := true;
            EXIT;
        END IF;
        v_from := greatest(s.released_until, p_topic_range.pending_from - 1);
        -- Up to the last record, also above the tracked offsets: that of a late message.
        SELECT max(q.message_offset), count(*) INTO v_last, v_rows
        FROM (SELECT r.message_offset FROM {schema}.completion_record r WHERE r.topic_id = p_topic_range.topic_id AND r.message_offset > v_from
              ORDER BY r.message_offset LIMIT v_left) q;
        WITH new AS (
            UPDATE {schema}.completion_record r
            SET required = r.required & ~s.mask, completed = r.completed & ~s.mask,
                completed_at = CASE WHEN r.required & ~s.mask = r.completed & ~s.mask THEN p_now END
            WHERE r.topic_id = p_topic_range.topic_id AND r.message_offset > v_from AND r.message_offset <= v_last
              AND r.completed_at IS NULL AND (r.required | r.completed) & s.mask <> 0
            RETURNING r.completed_at
        )
        SELECT count(*), count(new.completed_at) INTO v_changed, v_completed FROM new;
        changed := changed + v_changed;
        completed := completed + v_completed;
        UPDATE {schema}.subscription x SET released_until = CASE WHEN v_rows = v_left THEN v_last END
        WHERE x.subscription_id = s.subscription_id;
        more := more OR v_rows = v_left;
        v_left := v_left - v_rows;
    END LOOP;
END $$;

-- Stores what was applied: up to the cut, and for new records. Adjacent ranges are merged, and removed messages are left out, so it
-- stays as small as the outstanding ranges. Rows are locked by id, as in claims.
CREATE OR REPLACE FUNCTION {schema}.note_applied(
    p_topic_range {schema}.topic_range, p_gaps int8multirange, p_progress {schema}.progress[], p_cut bigint, p_new int8multirange
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_dealt int8multirange := int8multirange(int8range(p_topic_range.first_offset,
        greatest(least(p_cut, p_topic_range.tracked_until) + 1, p_topic_range.first_offset))) + p_new;
    v_rest int8multirange := int8multirange(int8range(p_cut + 1, greatest(p_topic_range.tracked_until, p_cut) + 1));
    p {schema}.progress;
    v_applied int8multirange;
BEGIN
    FOREACH p IN ARRAY p_progress LOOP
        CONTINUE WHEN p.bit IS NULL OR NOT p.counts;
        v_applied := v_dealt - p.pending - p_gaps;
        IF p_cut IS NOT NULL THEN
            v_applied := v_applied + p.applied * v_rest;
        END IF;
        IF v_applied <> p.applied THEN
            UPDATE {schema}.subscription s SET applied = v_applied WHERE s.subscription_id = p.subscription_id;
        END IF;
    END LOOP;
END $$;

-- An offset below which no record is pending; reads a limited number of records from the last result on. Late messages get
-- records out of order, but only in recorded gaps, which a snapshot without the record still shows: so the result is never beyond
-- a gap.
CREATE OR REPLACE FUNCTION {schema}.lowest_pending(p_topic_id integer, p_from bigint, p_until bigint) RETURNS bigint
LANGUAGE sql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    WITH seen AS MATERIALIZED (
        SELECT r.message_offset, r.completed_at FROM {schema}.completion_record r
        WHERE r.topic_id = p_topic_id AND r.message_offset >= p_from AND r.message_offset <= p_until
        ORDER BY r.message_offset LIMIT CASE WHEN EXISTS (
            -- The common case of a group that is behind: the result does not change.
            SELECT FROM {schema}.completion_record x WHERE x.topic_id = p_topic_id AND x.message_offset = p_from AND x.completed_at IS NULL
        ) THEN 1 ELSE 20000 END
    )
    SELECT least(
        coalesce((SELECT min(s.message_offset) FROM seen s WHERE s.completed_at IS NULL),
                 (SELECT max(s.message_offset) + 1 FROM seen s HAVING count(*) = 20000), p_until + 1),
        (SELECT min(g.first_offset) FROM {schema}.gap g WHERE g.topic_id = p_topic_id))
$$;

-- Removes the records after a change to offset watermark, lowest first, and ends the change.
CREATE OR REPLACE FUNCTION {schema}.drop_records(p_topic_range {schema}.topic_range, p_max integer, OUT removed bigint, OUT more boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_last bigint;
BEGIN
    SELECT max(q.message_offset) INTO v_last
    FROM (SELECT r.message_offset FROM {schema}.completion_record r WHERE r.topic_id = p_topic_range.topic_id
          ORDER BY r.message_offset LIMIT p_max) q;
    DELETE FROM {schema}.completion_record r WHERE r.topic_id = p_topic_range.topic_id AND r.message_offset <= v_last;
    GET DIAGNOSTICS removed = ROW_COUNT;
    more := removed = p_max;
    IF more THEN
        UPDATE {schema}.topic_range x SET pending_from = v_last + 1 WHERE x.topic_id = p_topic_range.topic_id;
        RETURN;
    END IF;
    UPDATE {schema}.topic_range x SET tracked_until = 0, change_until = NULL, pending_from = 1, bits_used = 0
    WHERE x.topic_id = p_topic_range.topic_id;
    UPDATE {schema}.subscription s SET bit = NULL, applied = '{}', released_until = NULL
    WHERE s.topic_id = p_topic_range.topic_id AND (s.bit IS NOT NULL OR s.released_until IS NOT NULL);
END $$;

-- One tracking step for a topic, of at most p_max offsets.
CREATE OR REPLACE FUNCTION {schema}.track(
    p_topic_id integer, p_max integer, p_now {schema}.injected_time,
    OUT recorded bigint, OUT changed bigint, OUT completed bigint, OUT released bigint, OUT removed bigint, OUT more boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    e {schema}.topic_range := {schema}.begin_maintenance(p_topic_id);
    v_tracking text;
    v_head bigint;
    v_gaps int8multirange;
    v_progress {schema}.progress[];
    v_until bigint;
    v_new int8multirange;
    v_step record;
    v_release record;
    v_pending bigint;
BEGIN
    recorded := 0;
    changed := 0;
    completed := 0;
    released := 0;
    removed := 0;
    more := false;
    -- One statement, one snapshot, after the lock.
    SELECT t.tracking, h.head, {schema}.gaps(p_topic_id), ARRAY(SELECT p FROM {schema}.progress_list(p_topic_id) p)
    INTO v_tracking, v_head, v_gaps, v_progress
    FROM {schema}.topic t JOIN {schema}.head h ON h.topic_id = t.topic_id WHERE t.topic_id = p_topic_id;
    IF v_tracking = 'offset_watermark' THEN
        IF e.change_until IS NOT NULL THEN
            SELECT d.removed, d.more INTO removed, more FROM {schema}.drop_records(e, p_max) d;
        END IF;
        RETURN;
    END IF;
    e.tracked_until := greatest(e.tracked_until, e.first_offset - 1);
    -- Existing records first: new ones are then created with the present state, and in most cases never changed again.
    SELECT * INTO v_step FROM {schema}.apply_progress(e, v_gaps, v_progress, p_max, v_now);
    v_until := greatest(least(v_head, e.tracked_until + p_max - v_step.dealt), e.tracked_until);
    v_new := int8multirange(int8range(e.tracked_until + 1, v_until + 1));
    IF NOT isempty(v_new) THEN
        SELECT m.made, m.completed INTO recorded, completed
        FROM {schema}.make_records(p_topic_id, v_new - v_gaps, v_progress, v_now) m;
    END IF;
    SELECT * INTO v_release
    FROM {schema}.release_records(e, p_max - v_step.dealt - (v_until - e.tracked_until), v_now);
    changed := v_step.changed + v_release.changed;
    released := v_release.changed;
    completed := completed + v_step.completed + v_release.completed;
    more := v_step.cut IS NOT NULL OR v_until < v_head OR v_release.more;
    PERFORM {schema}.note_applied(e, v_gaps, v_progress, v_step.cut, v_new);
    v_pending := {schema}.lowest_pending(p_topic_id, greatest(e.pending_from, e.first_offset), v_until);
    IF (v_until, v_pending) IS DISTINCT FROM (e.tracked_until, e.pending_from) OR v_until >= e.change_until THEN
        UPDATE {schema}.topic_range x
        SET tracked_until = v_until, pending_from = v_pending,
            change_until = CASE WHEN v_until < x.change_until THEN x.change_until END
        WHERE x.topic_id = p_topic_id;
    END IF;
END $$;

-- The completion records of a range, by offset.
CREATE OR REPLACE FUNCTION {schema}.records(p_topic text, p_first bigint, p_last bigint, p_max integer, p_now {schema}.injected_time)
RETURNS TABLE (message_offset bigint, required text[], completed text[], completed_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.message_offset, s.required_groups, s.completed_groups,
           CASE WHEN s.completed_at IS NOT NULL AND NOT s.recorded THEN coalesce(p_now, s.completed_at) ELSE s.completed_at END
    FROM {schema}.message_status s
    WHERE s.topic = p_topic AND s.message_offset BETWEEN p_first AND p_last
    ORDER BY s.message_offset LIMIT p_max
$$;
