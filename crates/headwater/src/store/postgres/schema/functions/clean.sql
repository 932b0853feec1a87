-- Removes messages that retention allows to remove.
--
-- Why no message is removed that a group was promised: a step holds the lock of the topic range, and what it reads then stays true
-- until it commits (see functions/tracking/step.sql). A subscribe, seek, redrive or resurrection either had the lock before: then
-- its position is visible here and its messages stay; or gets it after: then it sees the new first offset and the remaining
-- messages. Late messages of a recorded gap are in the gap for the snapshot that decides, and so are not removed.
--
-- If a step is killed at any point, nothing of it has happened. If two run at once, the second waits for the lock and does the
-- rest.

-- Adds the watermark to its history, and deletes entries that are no longer needed. If the watermark moved back (a new group, a
-- seek), later entries are set back too: retention of messages that must be done again is measured from then on. An entry that
-- follows its predecessor closely is replaced by the next one: messages stay a thousandth of their time longer, and there are
-- never many more than a thousand entries.
CREATE OR REPLACE FUNCTION {schema}.note_watermark(p_topic {schema}.topic, p_watermark bigint, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_last {schema}.watermark_history;
    v_previous timestamptz;
BEGIN
    IF p_topic.message_retention_ms IS NULL THEN
        RETURN;
    END IF;
    -- Recorded while the clock was ahead: such an entry would prevent new ones until that time.
    DELETE FROM {schema}.watermark_history m WHERE m.topic_id = p_topic.topic_id AND m.noted_at > p_now;
    UPDATE {schema}.watermark_history m SET watermark = p_watermark WHERE m.topic_id = p_topic.topic_id AND m.watermark > p_watermark;
    SELECT m.* INTO v_last FROM {schema}.watermark_history m WHERE m.topic_id = p_topic.topic_id ORDER BY m.noted_at DESC LIMIT 1;
    IF NOT FOUND OR v_last.watermark < p_watermark AND v_last.noted_at < p_now THEN
        INSERT INTO {schema}.watermark_history (topic_id, noted_at, watermark) VALUES (p_topic.topic_id, p_now, p_watermark);
        SELECT max(m.noted_at) INTO v_previous FROM {schema}.watermark_history m
        WHERE m.topic_id = p_topic.topic_id AND m.noted_at < v_last.noted_at;
        IF v_last.noted_at - v_previous < make_interval(secs => p_topic.message_retention_ms / 1000.0 / 1000) THEN
            DELETE FROM {schema}.watermark_history m WHERE m.topic_id = p_topic.topic_id AND m.noted_at = v_last.noted_at;
        END IF;
    END IF;
    DELETE FROM {schema}.watermark_history m WHERE m.topic_id = p_topic.topic_id AND m.noted_at < (
        SELECT max(x.noted_at) FROM {schema}.watermark_history x WHERE x.topic_id = p_topic.topic_id
        AND x.noted_at <= {schema}.before(p_now, p_topic.message_retention_ms));
END $$;

-- The retention cutoff: what may be removed now. Runs under the lock of the topic range, which an earlier statement took.
CREATE OR REPLACE FUNCTION {schema}.retention_cutoffs_of(p_topic {schema}.topic, e {schema}.topic_range, p_now timestamptz) RETURNS {schema}.retention_cutoffs
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.retention_cutoffs;
    v_counts boolean;
BEGIN
    r.now := coalesce(p_now, clock_timestamp());
    -- One statement, one snapshot.
    SELECT h.head, {schema}.gaps(h.topic_id), ARRAY(SELECT p FROM {schema}.progress_list(h.topic_id) p WHERE p.state <> 'cancelled'),
           {schema}.watermark_of(h.topic_id)
    INTO r.head, r.gaps, r.progress, r.watermark FROM {schema}.head h WHERE h.topic_id = p_topic.topic_id;
    SELECT coalesce(bool_or(p.counts), false), coalesce({schema}.span(1, r.head) - range_agg(p.pending), '{}') INTO v_counts, r.read
    FROM unnest(r.progress) p;
    -- While no subscription counts, messages published since are pending, and also those dead groups have not done: see watermark_of.
    SELECT coalesce(range_agg(p.pending), '{}') + CASE WHEN v_counts THEN '{}' ELSE int8multirange(int8range(e.zero_from, NULL)) END
    INTO r.pending FROM unnest(r.progress) p WHERE p.counts OR NOT v_counts;
    PERFORM {schema}.note_watermark(p_topic, r.watermark, r.now);
    PERFORM {schema}.note_age(p_topic, e.first_offset, r.head);
    r.kept_since := {schema}.before(r.now, p_topic.message_retention_ms);
    r.zero_since := {schema}.before(r.now, p_topic.zero_subscription_retention_ms);
    r.aged_since := {schema}.before(r.now, p_topic.max_retention_ms);
    r.done_until := CASE p_topic.message_retention_ms WHEN 0 THEN r.watermark ELSE least(r.watermark, coalesce(
        (SELECT m.watermark FROM {schema}.watermark_history m WHERE m.topic_id = p_topic.topic_id AND m.noted_at <= r.kept_since
         ORDER BY m.noted_at DESC LIMIT 1), 0)) END;
    r.fit := r.read + {schema}.span(1, {schema}.aged_by(p_topic.topic_id, p_topic.message_retention_ms))
        * ({schema}.span(1, {schema}.aged_by(p_topic.topic_id, p_topic.zero_subscription_retention_ms))
           + coalesce(int8multirange(int8range(e.zero_until + 1, NULL)), '{}'));
    r.aged := {schema}.span(1, {schema}.aged_by(p_topic.topic_id, p_topic.max_retention_ms));
    IF NOT v_counts AND p_topic.message_retention_ms IS NOT NULL THEN
        r.aged := r.aged + {schema}.span(e.zero_from, {schema}.aged_by(p_topic.topic_id,
            greatest(p_topic.zero_subscription_retention_ms, p_topic.message_retention_ms)));
    END IF;
    RETURN r;
END $$;

-- Adds missed messages to the state of subscriptions, and returns them for the log. Also moves subscriptions past removed
-- messages: cursors up to the first offset, and waiting ranges below it are deleted. Leased ranges are left to their owners. No
-- recorded gap lies below the first offset, so no cursor crosses one.
--
-- No claim on the slow path is running for the subscriptions that are changed (hold_claims), and the fast path holds nothing of the
-- subscription but a cursor, which is waited for. Subscription by subscription in the order of their ids, its row before its
-- cursors, and never waiting for an outstanding row. This function excludes claims itself unless the caller has done so.
CREATE OR REPLACE FUNCTION {schema}.follow_log(p_progress {schema}.progress[], p_misses {schema}.miss[], p_first bigint)
RETURNS TABLE (group_name text, missed bigint, missed_first bigint, missed_last bigint)
LANGUAGE plpgsql AS $$
DECLARE
    p {schema}.progress;
    v_miss {schema}.miss;
BEGIN
    PERFORM {schema}.hold_claims(ARRAY(
        SELECT q.subscription_id FROM unnest(p_progress) q
        WHERE lower(q.pending) < p_first OR q.subscription_id = ANY (ARRAY(SELECT m.subscription_id FROM unnest(p_misses) m))), true);
    FOREACH p IN ARRAY p_progress LOOP
        SELECT m.* INTO v_miss FROM unnest(p_misses) m WHERE m.subscription_id = p.subscription_id;
        IF FOUND THEN
            UPDATE {schema}.subscription s
            SET missed = s.missed + v_miss.messages, missed_first = least(s.missed_first, v_miss.first_offset),
                missed_last = greatest(s.missed_last, v_miss.last_offset)
            WHERE s.subscription_id = p.subscription_id;
            group_name := p.group_name;
            missed := v_miss.messages;
            missed_first := v_miss.first_offset;
            missed_last := v_miss.last_offset;
            RETURN NEXT;
        END IF;
        IF lower(p.pending) < p_first THEN
            PERFORM FROM {schema}.cursor c WHERE c.subscription_id = p.subscription_id AND c.next_offset < p_first
            ORDER BY c.lane FOR UPDATE;
            UPDATE {schema}.cursor c SET next_offset = p_first WHERE c.subscription_id = p.subscription_id AND c.next_offset < p_first;
            DELETE FROM {schema}.outstanding o WHERE o.ctid = ANY (ARRAY(
                SELECT x.ctid FROM {schema}.outstanding x
                WHERE x.subscription_id = p.subscription_id AND x.owner IS NULL AND x.last_offset < p_first FOR UPDATE SKIP LOCKED));
        END IF;
    END LOOP;
END $$;

-- Deletes what belongs to offsets below the first one: completion records whose partition was dropped, entries of the ack log.
CREATE OR REPLACE FUNCTION {schema}.forget_below(p_topic_id integer, p_first bigint, p_max integer) RETURNS bigint
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_records bigint := {schema}.forget_records_below(p_topic_id, p_first, p_max);
    v_lines bigint;
BEGIN
    DELETE FROM {schema}.ack_log a WHERE a.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.ack_log x WHERE x.topic_id = p_topic_id AND x.last_offset < p_first
        ORDER BY x.last_offset LIMIT p_max));
    GET DIAGNOSTICS v_lines = ROW_COUNT;
    RETURN greatest(v_records, v_lines);
END $$;

-- One step: at most p_max messages, and fewer if their payloads are large. Returns the groups that had not done the removed messages, dead ones too.
CREATE OR REPLACE FUNCTION {schema}.clean(
    p_topic_id integer, p_max integer, p_now {schema}.injected_time,
    OUT topic text, OUT removed bigint, OUT missed_groups text[], OUT missed bigint[], OUT missed_first bigint[], OUT missed_last bigint[],
    OUT more boolean
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    e {schema}.topic_range := {schema}.begin_maintenance(p_topic_id);
    t {schema}.topic;
    r {schema}.retention_cutoffs;
    c record;
    v_from bigint;
    v_first bigint;
    v_next bigint;
    v_full boolean;
    v_range record;
    v_misses {schema}.miss[] := '{}';
BEGIN
    SELECT x.* INTO STRICT t FROM {schema}.topic x WHERE x.topic_id = p_topic_id;
    r := {schema}.retention_cutoffs_of(t, e, p_now);
    topic := t.name;
    removed := 0;
    v_from := greatest(e.first_offset, e.clean_from);
    SELECT * INTO c FROM {schema}.candidates(t, e, r, v_from, p_max);
    IF NOT isempty(c.gone) THEN
        v_misses := {schema}.misses({schema}.loose_table(t), p_topic_id, r.progress, c.gone);
        FOR v_range IN SELECT lower(q) AS first, upper(q) - 1 AS last FROM unnest(c.gone) q LOOP
            removed := removed + {schema}.delete_messages(t, v_range.first, v_range.last);
            PERFORM {schema}.forget_records(t, v_range.first, v_range.last);
        END LOOP;
    END IF;
    -- Whether this run continues. Where messages are done in order, messages behind a full step that removed nothing are even
    -- younger. Only messages published while no subscription counted may stay longer than later ones: then the run continues behind
    -- all of them, because the rest of them is no older than those already seen. In reference counting, done messages may follow
    -- pending ones, up to messages that are too young to be removed.
    v_full := c.page_full;
    more := v_full AND (removed > 0 OR t.tracking = 'reference_counting'
                        AND coalesce(c.seen_at <= coalesce(r.kept_since, r.aged_since), false));
    v_next := CASE WHEN more THEN c.seen_last + 1 ELSE 0 END;
    IF v_full AND NOT more AND t.tracking = 'offset_watermark' AND v_from <= e.zero_until THEN
        more := true;
        v_next := greatest(c.seen_last, e.zero_until) + 1;
    END IF;
    -- While no subscription counts, messages published since may be removable although those that dead groups keep below are not.
    IF v_full AND NOT more AND e.zero_until IS NULL AND v_from < e.zero_from AND e.zero_from < upper(r.aged) THEN
        more := true;
        v_next := greatest(c.seen_last + 1, e.zero_from);
    END IF;
    -- Up to the lowest message that stays, never across a gap or beyond the head, where a message may still appear. Messages that
    -- this step did not visit are not passed.
    v_first := e.first_offset;
    IF v_from = e.first_offset THEN
        v_first := greatest(e.first_offset, least(
            c.kept, c.until + 1, r.head + 1,
            (SELECT min(x.first_offset) FROM {schema}.partition x WHERE x.topic_id = p_topic_id)));
    END IF;
    SELECT array_agg(m.group_name), array_agg(m.missed), array_agg(m.missed_first), array_agg(m.missed_last)
    INTO missed_groups, missed, missed_first, missed_last FROM {schema}.follow_log(r.progress, v_misses, v_first) m;
    IF {schema}.forget_below(p_topic_id, v_first, p_max) = p_max THEN
        more := true;
    END IF;
    IF removed > 0 OR (v_first, v_next) <> (e.first_offset, e.clean_from) THEN
        UPDATE {schema}.topic_range x SET first_offset = v_first, clean_from = v_next, removed = x.removed + clean.removed
        WHERE x.topic_id = p_topic_id;
    END IF;
END $$;
