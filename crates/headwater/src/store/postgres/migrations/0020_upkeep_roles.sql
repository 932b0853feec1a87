-- Who dies, who watches, and small things past their time. And rights for what is new: see grant_role.

-- Elects or confirms the worker of the namespace. Whoever has the term keeps it until it has run out.
CREATE FUNCTION {schema}.elect(p_worker text, p_term_ms bigint, p_now {schema}.injected_time) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    INSERT INTO {schema}.election AS e (worker, until) VALUES (p_worker, v_now + make_interval(secs => p_term_ms / 1000.0))
    ON CONFLICT (one) DO UPDATE SET worker = excluded.worker, until = excluded.until
        -- A term that ends later than one that begins now was given by a clock that was ahead: nobody waits for that time.
        WHERE e.worker = excluded.worker OR e.until <= v_now OR e.until > excluded.until;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION {schema}.elect IS 'granted to consumer: elects the worker of upkeep';

CREATE FUNCTION {schema}.resign(p_worker text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM {schema}.election e WHERE e.worker = p_worker
$$;
COMMENT ON FUNCTION {schema}.resign IS 'granted to consumer: gives up the term of the worker of upkeep';

-- Looks for the dead. One look at a time: they meet at the job's row. Under the extent's lock the silence is checked again in
-- the update itself: a heartbeat that came between is seen, and one that comes later finds a dead one and resurrects it.
--
-- Where nobody was watching (the last look is more than three minutes ago, or older than the server's start), everybody looks
-- silent because nobody could speak. They are suspected, and die at a look that comes an interval later and finds them silent
-- still. A suspicion is void once its subject has spoken, or the server was restarted again.
--
-- Extents first, then heads, then claims apart, each for all that may die and in one order: see 0014_life_cycle_tables. Who is
-- past its timeout only after that look is left for the next.
CREATE FUNCTION {schema}.detect_dead(p_now {schema}.injected_time) RETURNS TABLE (kind text, topic text, group_name text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    -- An injected time has nothing to do with when the server was started.
    v_started timestamptz := CASE WHEN p_now IS NULL THEN pg_postmaster_start_time() ELSE '-infinity' END;
    v_last timestamptz;
    v_watched boolean;
    v_ids integer[];
    v_topics integer[];
    s record;
    v_suspected timestamptz;
BEGIN
    INSERT INTO {schema}.job (job, last_run_at) VALUES ('dead_detection', 'epoch') ON CONFLICT (job) DO NOTHING;
    SELECT j.last_run_at INTO v_last FROM {schema}.job j WHERE j.job = 'dead_detection' FOR UPDATE;
    v_watched := v_last >= v_now - interval '3 minutes' AND v_last >= v_started;
    SELECT array_agg(x.subscription_id), array_agg(DISTINCT x.topic_id ORDER BY x.topic_id) INTO v_ids, v_topics
    FROM {schema}.subscription x JOIN {schema}.topic t ON t.topic_id = x.topic_id
    WHERE x.status = 'active' AND x.heartbeat_at < {schema}.before(v_now, t.heartbeat_timeout_ms)
      AND (v_watched OR x.suspected_at IS NOT NULL);
    IF v_ids IS NOT NULL THEN
        FOR i IN 1..cardinality(v_topics) LOOP
            PERFORM {schema}.begin_upkeep(v_topics[i]);
        END LOOP;
        -- A claim that has moved a head counts expiries in subscriptions: no head is waited for with one of those in hand.
        PERFORM FROM {schema}.head h WHERE h.topic_id = ANY (v_topics) ORDER BY h.topic_id FOR SHARE;
        PERFORM {schema}.hold_claims(v_ids, true);
    END IF;
    FOR s IN
        SELECT x.subscription_id, x.topic_id, t.name, x.group_name, x.heartbeat_at, x.suspected_at,
               {schema}.before(v_now, t.heartbeat_timeout_ms) AS silent_since, make_interval(secs => t.heartbeat_interval_ms / 1000.0) AS beat,
               {schema}.before(v_now, t.heartbeat_timeout_ms * 4 / 5) AS near
        FROM {schema}.subscription x JOIN {schema}.topic t ON t.topic_id = x.topic_id
        WHERE x.status = 'active' AND x.heartbeat_at <= {schema}.before(v_now, t.heartbeat_timeout_ms * 4 / 5)
        ORDER BY x.subscription_id
    LOOP
        topic := s.name;
        group_name := s.group_name;
        v_suspected := CASE WHEN s.suspected_at > s.heartbeat_at AND s.suspected_at >= v_started THEN s.suspected_at END;
        IF s.heartbeat_at >= s.silent_since THEN
            kind := 'near_timeout';
        ELSIF v_suspected + s.beat <= v_now OR v_suspected IS NULL AND v_watched THEN
            CONTINUE WHEN s.subscription_id <> ALL (coalesce(v_ids, '{}'))
                OR NOT {schema}.die(s.subscription_id, s.silent_since, v_now);
            kind := 'died';
        ELSE
            UPDATE {schema}.subscription x SET suspected_at = coalesce(v_suspected, v_now)
            WHERE x.subscription_id = s.subscription_id AND x.suspected_at IS DISTINCT FROM coalesce(v_suspected, v_now);
            kind := 'suspected';
        END IF;
        RETURN NEXT;
    END LOOP;
    UPDATE {schema}.job j SET last_run_at = greatest(v_now, j.last_run_at) WHERE j.job = 'dead_detection';
END $$;
COMMENT ON FUNCTION {schema}.detect_dead IS 'granted to consumer: finds subscriptions that fell silent';

-- Declares one dead, if it is active and silent still. The caller holds its extent and its head, and claims apart.
CREATE FUNCTION {schema}.die(p_subscription_id integer, p_silent_since timestamptz, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.subscription s SET status = 'dead', status_at = p_now, died_elapsed_ms = {schema}.elapsed(), suspected_at = NULL
    WHERE s.subscription_id = p_subscription_id AND s.status = 'active' AND s.heartbeat_at < p_silent_since;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM {schema}.end_accounting(p_subscription_id);
    RETURN true;
END $$;

-- Lets a subscription that has been dead for too long give up what it holds of messages that are removed. What is stored stays its
-- own: only retention takes it, and counts it. Under the lock of the extent; the head's too, as whoever moves cursors.
CREATE FUNCTION {schema}.move_zombie(p_subscription_id integer, p_topic_id integer) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint;
BEGIN
    PERFORM FROM {schema}.head h WHERE h.topic_id = p_topic_id FOR UPDATE;
    PERFORM {schema}.hold_claims(ARRAY[p_subscription_id], true);
    SELECT e.first_offset INTO STRICT v_first FROM {schema}.extent e WHERE e.topic_id = p_topic_id;
    PERFORM FROM {schema}.place_of(p_subscription_id) q
    WHERE q.status = 'dead' AND NOT q.counts AND lower(q.pending) < v_first;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM {schema}.give_up_below(p_subscription_id, v_first, clock_timestamp());
    RETURN true;
END $$;

-- One step over one subscription: the first beyond p_after whose time has passed, or nulls if there is none. Moves a zombie, or
-- deletes what has been dead (in elapsed time) or cancelled for long with nothing pending: its accounting is released; a dead one
-- holds nothing, and nothing is stored that it has not done; and it left no letters, which a person may still want. The dead group
-- of a queue stays: without it nothing would be kept for its workers. A transaction for each: no topic waits for another's.
CREATE FUNCTION {schema}.clean_subscription(
    p_after integer, p_older_than_ms {schema}.subscription_age_ms, p_now {schema}.injected_time,
    OUT subscription_id integer, OUT topic text, OUT group_name text, OUT moved boolean, OUT deleted boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    s record;
BEGIN
    SELECT x.subscription_id, x.topic_id, x.name, x.group_name, x.zombie, x.old INTO s
    FROM (SELECT q.subscription_id, q.topic_id, t.name, q.group_name,
                 q.status = 'dead' AND q.died_elapsed_ms <= {schema}.elapsed() - t.zombie_subscription_ttl_ms AS zombie,
                 CASE q.status WHEN 'dead' THEN q.died_elapsed_ms <= {schema}.elapsed() - p_older_than_ms
                               ELSE q.status_at < {schema}.before(v_now, p_older_than_ms) END AS old
          FROM {schema}.subscription q JOIN {schema}.topic t ON t.topic_id = q.topic_id
          WHERE q.status = 'cancelled' OR q.status = 'dead' AND NOT {schema}.counts(q.status, t.semantics)) x
    WHERE x.subscription_id > p_after AND (x.zombie OR x.old)
    ORDER BY x.subscription_id LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    subscription_id := s.subscription_id;
    topic := s.name;
    group_name := s.group_name;
    moved := false;
    deleted := false;
    PERFORM {schema}.begin_upkeep(s.topic_id);
    IF s.zombie THEN
        moved := {schema}.move_zombie(s.subscription_id, s.topic_id);
    END IF;
    IF s.old THEN
        deleted := {schema}.delete_subscription(s.subscription_id, s.topic_id);
    END IF;
END $$;
COMMENT ON FUNCTION {schema}.clean_subscription IS 'granted to consumer: removes subscriptions past their time';

-- Deletes one if nothing of it is pending. Dead letters are there to be read until they are purged: while it has any it stays. Under
-- the head's lock: a late row that is handed out at this moment is either seen here, or finds no subscription.
CREATE FUNCTION {schema}.delete_subscription(p_subscription_id integer, p_topic_id integer) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM {schema}.head h WHERE h.topic_id = p_topic_id FOR SHARE;
    PERFORM {schema}.hold_claims(ARRAY[p_subscription_id], true);
    -- Looked at anew, under the lock: it may have come back.
    PERFORM FROM {schema}.place_of(p_subscription_id) p JOIN {schema}.subscription s ON s.subscription_id = p.subscription_id
    WHERE s.released_until IS NULL
      AND (p.status = 'cancelled'
           OR p.status = 'dead' AND NOT p.counts AND isempty(p.held)
              AND NOT EXISTS (SELECT FROM {schema}.message m WHERE m.topic_id = p_topic_id AND m.message_offset >= p.next_offset))
      AND NOT EXISTS (SELECT FROM {schema}.dead_letter d WHERE d.subscription_id = p_subscription_id);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id;
    DELETE FROM {schema}.subscription s WHERE s.subscription_id = p_subscription_id;
    RETURN true;
END $$;

-- Forgets what processes told that have not been heard of for a day, and expired dedup keys; a bounded number.
CREATE FUNCTION {schema}.forget_old(p_max integer, p_now {schema}.injected_time) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_owners text[];
    v_activities bigint;
    v_keys bigint;
BEGIN
    -- Their totals stay, in the row that has no owner.
    v_owners := ARRAY(SELECT DISTINCT x.owner FROM {schema}.activity x
                      WHERE x.owner <> '' AND x.told_at < v_now - interval '1 day' ORDER BY x.owner LIMIT p_max);
    v_activities := cardinality(v_owners);
    IF v_activities > 0 THEN
        PERFORM {schema}.forget_owners(v_owners);
    END IF;
    DELETE FROM {schema}.dedup d WHERE d.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.dedup x WHERE x.expires_at <= v_now ORDER BY x.expires_at LIMIT p_max FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_keys = ROW_COUNT;
    RETURN v_activities + v_keys;
END $$;
COMMENT ON FUNCTION {schema}.forget_old IS 'granted to consumer: forgets small things past their time';

-- Notes that a job was run. A look for the dead that failed was no look.
CREATE FUNCTION {schema}.job_ran(
    p_job text, p_duration_us bigint, p_rows bigint, p_backlog bigint, p_error text, p_now {schema}.injected_time
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO {schema}.job AS j (job, runs, failures, rows, backlog, last_run_at, duration_us, last_error)
    VALUES (p_job, 1, (p_error IS NOT NULL)::integer, p_rows, p_backlog,
            CASE WHEN p_job = 'dead_detection' AND p_error IS NOT NULL THEN 'epoch' ELSE coalesce(p_now, clock_timestamp()) END,
            p_duration_us, p_error)
    ON CONFLICT (job) DO UPDATE
        SET runs = j.runs + 1, failures = j.failures + excluded.failures, rows = j.rows + excluded.rows, backlog = excluded.backlog,
            last_run_at = greatest(j.last_run_at, excluded.last_run_at), duration_us = excluded.duration_us, last_error = excluded.last_error
$$;
COMMENT ON FUNCTION {schema}.job_ran IS 'granted to consumer: notes runs of jobs';

CREATE FUNCTION {schema}.jobs() RETURNS SETOF {schema}.job
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT j.* FROM {schema}.job j WHERE j.runs > 0 ORDER BY j.job
$$;
COMMENT ON FUNCTION {schema}.jobs IS 'granted to consumer, reader: how jobs have been doing';

SELECT {schema}.grant_roles();
