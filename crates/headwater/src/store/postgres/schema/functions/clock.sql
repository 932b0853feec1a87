-- Ages, steps of the clock, and elapsed time.
--
-- Steps of the clock: clock/guard.rs describes how a process detects one, and why all processes together move deadlines once.

-- The age of a timestamp. A timestamp from the future, of a clock that was ahead, counts as very old: a wait for its age must not
-- last until the clock shows that time again. One second is tolerated between two processes that read the clock.
CREATE OR REPLACE FUNCTION {schema}.stamp_age_ms(p_at timestamptz, p_now timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_at - p_now > interval '1 second' THEN 1000000000000000
                WHEN p_at > p_now THEN 0
                ELSE (extract(epoch FROM p_now - p_at) * 1000)::bigint END
$$;

-- Refuses (HW009) a statement that depends on deadlines because the clock stepped. Callers compare the times first, because a call
-- costs more than that. The process sends the time it expects, and checks the clock when it is refused.
CREATE OR REPLACE FUNCTION {schema}.refuse_step(p_now timestamptz, p_expected timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'HW009', MESSAGE = format('clock stepped: %s where %s is expected', p_now, p_expected);
END $$;

-- The time, and the stored state of the clock.
CREATE OR REPLACE FUNCTION {schema}.read_clock(
    p_now {schema}.injected_time, OUT now timestamptz, OUT latest_at timestamptz, OUT steady_at timestamptz, OUT moved_ms bigint
)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(p_now, clock_timestamp()), c.latest_at, c.steady_at, c.moved_ms FROM {schema}.clock c
$$;

-- Stores the time p_read that a process read, and moves deadlines by a step it detected. False, and nothing changed, if another
-- process moved them since: p_moved_ms is no longer the stored value. Two processes that detect the same step are serialized by
-- the row. False as well if the clock shows another time now: it stepped since, or p_read was never read from it.
--
-- Only to store the time, no process waits for another that has locked the row: hundreds of them read the clock before each
-- heartbeat, and all find at the same moment that the stored time is old. The result is false, because the other one may be moving
-- deadlines; the caller reads the clock again.
--
-- Any consumer may call this, so the step is refused, and the result is false, unless the stored times explain it: no single call moves
-- deadlines far, though many calls of a role that sends wrong times can. Such a role can settle every lease anyway. p_read was read
-- before, so it is not in the future. The rest follows from p_read - (stored time) = p_step_ms + the time that passed since the stored
-- time was read:
-- - A step forward is at most p_read - (stored time), because the time that passed is not negative. More would postpone every retry,
--   lease and back-off beyond the time that really passed. The stored time is that of a steady process, if there was one: another
--   may have started after the step, have noticed nothing, and have stored the time it found.
-- - After a step back latest_at may lie ahead of the clock by less than the step, by the time for which no process read the clock.
--   Nothing in the database measures that; an hour of it is believed.
-- - Processes send no step of 2 s or less (STEP_MIN_MS), and others detect a larger one that did not happen, and move it back.
-- clock.rs, "accepted_ms", has the same rule: a process sends no step that is refused here.
--
-- Rows locked by another transaction are skipped, because waiting for them could be a deadlock: a claim or settlement that works on
-- them at this moment sets new times or removes them.
CREATE OR REPLACE FUNCTION {schema}.move_clock(
    p_moved_ms bigint, p_step_ms bigint, p_read timestamptz, p_steady boolean, p_now {schema}.injected_time
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_step interval := make_interval(secs => p_step_ms / 1000.0);
    v_after timestamptz;
BEGIN
    IF (extract(epoch FROM coalesce(p_now, clock_timestamp()) - p_read) BETWEEN 0 AND 5) IS NOT TRUE THEN
        RETURN false;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    IF p_step_ms = 0 THEN
        PERFORM FROM {schema}.clock c WHERE c.moved_ms = p_moved_ms FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    UPDATE {schema}.clock c
    SET latest_at = CASE WHEN p_step_ms = 0 THEN greatest(c.latest_at, p_read) ELSE p_read END,
        steady_at = CASE WHEN p_steady THEN p_read ELSE c.steady_at + v_step END,
        moved_ms = c.moved_ms + p_step_ms
    -- A millisecond is the rounding of processes.
    WHERE c.moved_ms = p_moved_ms AND CASE
        WHEN p_step_ms > 2000 THEN p_step_ms <= extract(epoch FROM p_read - coalesce(c.steady_at, c.latest_at)) * 1000 + 1
        WHEN p_step_ms < -2000
            THEN p_step_ms >= extract(epoch FROM least(p_read - c.latest_at, interval '0')) * 1000 - 3600000 - 1
        ELSE p_step_ms = 0 END;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_step_ms = 0 THEN
        RETURN true;
    END IF;
    -- A deadline that had passed before a step forward stays passed; one that lies in the past after a step back is due as before.
    v_after := p_read - greatest(v_step, interval '0');
    -- A lease that moving would end was given after the step back, by a process that had not noticed it: its deadline is right.
    UPDATE {schema}.outstanding o SET due_at = o.due_at + v_step WHERE o.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.outstanding x
        WHERE x.due_at > v_after AND x.due_at < 'infinity' AND (x.owner IS NULL OR x.due_at + v_step > p_read)
        ORDER BY x.subscription_id, x.lane, x.first_offset FOR UPDATE SKIP LOCKED));
    -- Claims and back-offs of the outbox, in the same way.
    UPDATE {schema}.outbox_entry e
    SET claimed_at = CASE WHEN e.status = 'CLAIMED' THEN least(e.claimed_at + v_step, p_read) ELSE e.claimed_at END,
        next_at = CASE WHEN e.next_at > v_after THEN e.next_at + v_step ELSE e.next_at END
    WHERE e.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.outbox_entry x
        WHERE x.next_at IS NOT NULL OR x.status = 'CLAIMED' AND x.next_at IS NULL FOR UPDATE SKIP LOCKED));
    UPDATE {schema}.owner w SET seen_at = least(w.seen_at + v_step, p_read) WHERE w.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.owner x FOR UPDATE SKIP LOCKED));
    UPDATE {schema}.waiter w SET until = w.until + v_step WHERE w.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.waiter x FOR UPDATE SKIP LOCKED));
    UPDATE {schema}.dedup d
    SET expires_at = least(CASE WHEN d.expires_at + v_step > p_read THEN d.expires_at + v_step ELSE d.expires_at END,
                           p_read + make_interval(secs => t.dedup_window_ms / 1000.0))
    FROM {schema}.topic t
    WHERE t.topic_id = d.topic_id AND d.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.dedup x WHERE x.expires_at > v_after FOR UPDATE SKIP LOCKED));
    RETURN true;
END $$;

-- Reads the clock, adds to the elapsed time, and returns it. A wrong clock must not make unread messages old: between two
-- readings at most five minutes count, and nothing if the clock went back. A step of the clock and an interruption of maintenance
-- cannot be distinguished: the first ages messages by five minutes at most, and the second only delays their removal. Detection
-- of dead groups reads it every minute. In a transaction of its own, so that no other session waits for it.
CREATE OR REPLACE FUNCTION {schema}.elapse(p_now {schema}.injected_time) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO {schema}.elapsed AS c (read_at, elapsed_ms) VALUES (coalesce(p_now, clock_timestamp()), 0)
    ON CONFLICT (one) DO UPDATE
        SET elapsed_ms = c.elapsed_ms
                + least(greatest((extract(epoch FROM excluded.read_at - c.read_at) * 1000)::bigint, 0), 300000),
            read_at = excluded.read_at
    RETURNING c.elapsed_ms
$$;

CREATE OR REPLACE FUNCTION {schema}.elapsed() RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT coalesce((SELECT c.elapsed_ms FROM {schema}.elapsed c), 0) $$;

-- Everything at or below the result is at least p_ms old in elapsed time; 0 if p_ms is null.
CREATE OR REPLACE FUNCTION {schema}.aged_by(p_topic_id integer, p_ms bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT a.head FROM {schema}.age a WHERE a.topic_id = p_topic_id AND a.elapsed_ms <= {schema}.elapsed() - p_ms
                     ORDER BY a.elapsed_ms DESC LIMIT 1), 0)
$$;

-- Records the head, if it moved, and deletes rows that are no longer needed. A row of age a is the only one in a slot of width
-- about a / 256: so there are at most about a thousand rows, and removal is late by at most that width. The width of slots is a
-- power of two, so the first row of a wide slot is the first of a narrow one too.
CREATE OR REPLACE FUNCTION {schema}.note_age(p_topic {schema}.topic, p_first bigint, p_head bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := {schema}.elapsed();
    v_longest bigint := greatest(p_topic.max_retention_ms, CASE WHEN p_topic.message_retention_ms IS NOT NULL
        THEN greatest(p_topic.message_retention_ms, p_topic.zero_subscription_retention_ms) END);
BEGIN
    IF v_longest IS NOT NULL AND p_head > greatest({schema}.aged_by(p_topic.topic_id, 0), p_first - 1) THEN
        INSERT INTO {schema}.age AS a (topic_id, elapsed_ms, head) VALUES (p_topic.topic_id, v_now, p_head)
        ON CONFLICT (topic_id, elapsed_ms) DO UPDATE SET head = excluded.head;
        DELETE FROM {schema}.age a USING (
            SELECT x.elapsed_ms, lag(x.elapsed_ms) OVER (ORDER BY x.elapsed_ms) AS before,
                   1::bigint << ceil(log(2, greatest((v_now - x.elapsed_ms) / 256, 1)::numeric))::integer AS width
            FROM {schema}.age x WHERE x.topic_id = p_topic.topic_id
        ) q
        WHERE a.topic_id = p_topic.topic_id AND a.elapsed_ms = q.elapsed_ms AND q.before / q.width = q.elapsed_ms / q.width;
    END IF;
    DELETE FROM {schema}.age a WHERE a.topic_id = p_topic.topic_id
        AND (v_longest IS NULL OR a.head < p_first - 1 OR a.elapsed_ms < (
            SELECT max(x.elapsed_ms) FROM {schema}.age x WHERE x.topic_id = p_topic.topic_id AND x.elapsed_ms <= v_now - v_longest));
END $$;

-- The time p_ms before p_now; null for a null retention, which never ends.
CREATE OR REPLACE FUNCTION {schema}.before(p_now timestamptz, p_ms bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$ SELECT p_now - make_interval(secs => p_ms / 1000.0) $$;
