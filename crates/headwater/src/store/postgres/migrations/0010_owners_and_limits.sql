-- Owners that say they are alive, and limits that hold for a whole group.
--
-- An owner that beats is known to be dead once it falls silent, long before its leases run out. Whoever beats next ends
-- those leases: their deadline becomes the beginning of time, so that no clock makes their tokens valid again. The rest
-- (a new token, the attempt, suspicion, the log line) is done by the claim that finds them, as for any lease past its
-- deadline. Owners that never beat have no row here and only plain leases. Neither claims nor settlements look here.

CREATE TABLE {schema}.owner (
    owner   text COLLATE "C" PRIMARY KEY,
    seen_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE INDEX owner_seen ON {schema}.owner (seen_at);

-- What proves that an owner's process lives: a session of its own holds the advisory lock of this key. The server releases
-- the lock when the process ends, because its kernel closes the connection. An owner without a row is judged by silence alone.
--
-- A proof ends with the server that gave it: a crash or a failover empties the table, and "server_at" tells a restart. Clients that
-- connect again are not judged by how soon they do.
--
-- The key is random. Any role can read it in pg_locks and wait for the lock: then the end of the process is found by
-- silence, as without a proof. No role can release a lock of another session, so none makes a living process seem ended.
CREATE UNLOGGED TABLE {schema}.proof (
    owner     text COLLATE "C" PRIMARY KEY REFERENCES {schema}.owner ON DELETE CASCADE,
    key       bigint NOT NULL,
    server_at timestamptz NOT NULL
);

-- Ends the leases of an owner that is dead, and forgets it. Its row is locked by the caller.
CREATE FUNCTION {schema}.end_leases(p_owner text, p_now timestamptz, OUT leases bigint, OUT topic_ids integer[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- No index finds leases by owner: it would cost every claim and settlement, and owners die rarely.
    WITH locked AS MATERIALIZED (
        SELECT l.token FROM {schema}.outstanding l WHERE l.owner = p_owner AND l.due_at > p_now FOR UPDATE SKIP LOCKED
    ), whole AS (
        -- A lease ends with all its rows or not at all, or a settlement under way could find only some of them.
        SELECT k.token FROM locked k GROUP BY k.token
        HAVING count(*) = (SELECT count(*) FROM {schema}.outstanding a WHERE a.token = k.token)
    ), ended AS (
        UPDATE {schema}.outstanding o SET due_at = '-infinity' FROM whole WHERE o.token = whole.token
        RETURNING o.token, o.subscription_id
    )
    SELECT count(DISTINCT e.token), array_agg(DISTINCT s.topic_id) INTO leases, topic_ids
    FROM ended e JOIN {schema}.subscription s ON s.subscription_id = e.subscription_id;
    IF NOT EXISTS (SELECT FROM {schema}.outstanding o WHERE o.owner = p_owner AND o.due_at > p_now) THEN
        DELETE FROM {schema}.owner w WHERE w.owner = p_owner;
    END IF;
    IF leases > 0 THEN
        -- Whether or not a flag is up: one that is raised while this runs is not seen, and deaths are rare.
        PERFORM {schema}.wake(t, true, true) FROM unnest(topic_ids) t;
    END IF;
END $$;

-- Says that an owner is alive, and ends the leases of those that have been silent for too long: one row for each of them
-- that held any.
--
-- It waits only for its own row, and holds nothing then: two beats, or a beat and a claim or settlement, never deadlock. A
-- lease that somebody is settling or extending right now is left to them whole. Its owner's row then stays, and the next
-- beat looks again.
CREATE FUNCTION {schema}.heartbeat(p_owner text, p_silent_ms bigint, p_now {schema}.injected_time)
RETURNS TABLE (dead_owner text, leases bigint, topic_ids integer[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    -- A beat lost in a power cut is made up for by the next one; a sweep is lost together with the row it removed.
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO {schema}.owner AS w (owner, seen_at) VALUES (p_owner, v_now)
    ON CONFLICT (owner) DO UPDATE SET seen_at = excluded.seen_at;
    -- One from the future was seen by a clock that was ahead: it counts as seen now, and is not alive until then.
    UPDATE {schema}.owner w SET seen_at = v_now WHERE w.owner = ANY (ARRAY(
        SELECT x.owner FROM {schema}.owner x WHERE x.seen_at > v_now + interval '1 second' FOR UPDATE SKIP LOCKED));
    FOR dead_owner IN
        SELECT w.owner FROM {schema}.owner w
        WHERE w.seen_at < v_now - make_interval(secs => p_silent_ms / 1000.0) AND w.owner <> p_owner
        ORDER BY w.seen_at FOR UPDATE SKIP LOCKED
    LOOP
        SELECT e.leases, e.topic_ids INTO leases, topic_ids FROM {schema}.end_leases(dead_owner, v_now) e;
        IF leases > 0 THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- Proves that p_owner lives, with the session that this is called on, and returns the owners whose proof is gone. It writes only if
-- the owner's row has another proof: one of an earlier session, or none.
--
-- The session holds the lock of p_key and has the key as a setting. A pooler that gives the statement another session is found
-- by that setting: nothing is proven then.
--
-- Of all owners it examines the p_others_max that follow p_owner by name, and after the last the first ones. So each is examined
-- by as many, and the cost of a call does not grow with their number. Owners of the same session are not: it may take its own lock.
CREATE FUNCTION {schema}.watch(p_owner text, p_key bigint, p_others_max integer)
RETURNS TABLE (owner text, key bigint, seen_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_server_at timestamptz := pg_postmaster_start_time();
BEGIN
    IF current_setting('headwater.proof', true) IS DISTINCT FROM p_key::text THEN
        RETURN;
    END IF;
    -- The lock of the foreign key, taken before it is checked: an owner that another forgets at this moment has no row once that
    -- commits, and proves nothing until its next heartbeat, as before its first one. Its session stays.
    INSERT INTO {schema}.proof AS f (owner, key, server_at)
    SELECT w.owner, p_key, v_server_at FROM {schema}.owner w
    WHERE w.owner = p_owner AND NOT EXISTS (SELECT FROM {schema}.proof x WHERE x.owner = p_owner AND x.key = p_key)
    FOR KEY SHARE OF w
    ON CONFLICT (owner) DO UPDATE SET key = excluded.key, server_at = excluded.server_at;
    FOR watch.owner, watch.key, watch.seen_at IN
        SELECT w.owner, o.key, w.seen_at
        FROM ((SELECT f.owner, f.key FROM {schema}.proof f WHERE f.owner > p_owner AND f.key <> p_key AND f.server_at = v_server_at
               ORDER BY f.owner LIMIT p_others_max)
              UNION ALL
              (SELECT f.owner, f.key FROM {schema}.proof f WHERE f.owner < p_owner AND f.key <> p_key AND f.server_at = v_server_at
               ORDER BY f.owner LIMIT p_others_max)
              LIMIT p_others_max) o
        JOIN {schema}.owner w ON w.owner = o.owner
    LOOP
        -- Shared: two that examine the same owner at once do not take each other for it.
        IF pg_try_advisory_xact_lock_shared(watch.key) THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION {schema}.watch IS 'granted to consumer: proves that a process lives, and finds those that ended';

-- Ends the leases of an owner whose proof is gone, as watch() found it: no row if it was seen alive or gave another proof since.
-- Both rows stay locked until the leases have ended, so a proof that is given meanwhile comes before or after all of it.
CREATE FUNCTION {schema}.take_over(p_owner text, p_key bigint, p_seen_at timestamptz, p_now {schema}.injected_time)
RETURNS TABLE (leases bigint, topic_ids integer[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM FROM {schema}.owner w JOIN {schema}.proof f ON f.owner = w.owner
    WHERE w.owner = p_owner AND w.seen_at = p_seen_at AND f.key = p_key AND f.server_at = pg_postmaster_start_time()
    FOR UPDATE SKIP LOCKED;
    IF FOUND AND pg_try_advisory_xact_lock_shared(p_key) THEN
        RETURN QUERY SELECT e.leases, e.topic_ids FROM {schema}.end_leases(p_owner, coalesce(p_now, clock_timestamp())) e;
    END IF;
END $$;
COMMENT ON FUNCTION {schema}.take_over IS 'granted to consumer: ends the leases of a process that ended';

-- Takes a proof back: its session broke, and the owner is judged by silence until it has another.
CREATE FUNCTION {schema}.withdraw(p_owner text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM {schema}.proof f WHERE f.owner = p_owner
$$;
COMMENT ON FUNCTION {schema}.withdraw IS 'granted to consumer: takes back the proof that a process lives';

-- Forgets owners. What they did stays in the sums: it is added to the row without an owner. That row refers to the subscription, so
-- the subscriptions are locked before the rows, and all in the order of locks: owners that leave at once, or whose heartbeat
-- is still under way, wait for each other in one order.
CREATE FUNCTION {schema}.forget_owners(p_owners text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_ids integer[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM {schema}.owner w WHERE w.owner = ANY (ARRAY(
        SELECT x.owner FROM {schema}.owner x WHERE x.owner = ANY (p_owners) ORDER BY x.owner FOR UPDATE));
    v_ids := ARRAY(SELECT DISTINCT a.subscription_id FROM {schema}.activity a WHERE a.owner = ANY (p_owners));
    PERFORM FROM {schema}.subscription s WHERE s.subscription_id = ANY (v_ids) ORDER BY s.subscription_id FOR KEY SHARE;
    PERFORM FROM {schema}.activity a WHERE a.subscription_id = ANY (v_ids) AND a.owner = ANY (p_owners || ''::text)
    ORDER BY a.subscription_id, a.owner FOR UPDATE;
    WITH gone AS (
        DELETE FROM {schema}.activity a WHERE a.subscription_id = ANY (v_ids) AND a.owner = ANY (p_owners)
        RETURNING a.subscription_id, a.processed, a.failed, a.filtered
    )
    INSERT INTO {schema}.activity AS a (subscription_id, owner, processed, failed, filtered, rate, handling_mean_us,
                                        handling_p95_us, told_at)
    SELECT g.subscription_id, '', sum(g.processed), sum(g.failed), sum(g.filtered), 0, 0, 0, '-infinity'
    FROM gone g GROUP BY g.subscription_id ORDER BY g.subscription_id
    ON CONFLICT (subscription_id, owner) DO UPDATE
        SET processed = a.processed + excluded.processed, failed = a.failed + excluded.failed,
            filtered = a.filtered + excluded.filtered;
END $$;

-- Forgets an owner that leaves on purpose.
CREATE FUNCTION {schema}.depart(p_owner text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ SELECT {schema}.forget_owners(ARRAY[p_owner]) $$;

-- Steps of the clock: clock/guard.rs says how a process tells one, and why all of them together move deadlines once.

-- The time, and what is known of the clock.
CREATE FUNCTION {schema}.read_clock(
    p_now {schema}.injected_time, OUT now timestamptz, OUT latest_at timestamptz, OUT steady_at timestamptz, OUT moved_ms bigint
)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(p_now, clock_timestamp()), c.latest_at, c.steady_at, c.moved_ms FROM {schema}.clock c
$$;
COMMENT ON FUNCTION {schema}.read_clock IS 'granted to producer, consumer: the time, and steps of the clock that are dealt with';

-- Stores the time p_read that a process read, and moves deadlines by a step it found. False, and nothing changed, if another
-- moved them since: p_moved_ms is no longer what is stored. Two that find the same step wait for each other at the row.
-- False as well if the clock shows another time by now: it stepped since, or p_read was never read from it.
--
-- Rows that a transaction holds are passed over, because waiting for them could be a deadlock: a claim or settlement that is at
-- work on them at this moment gives them new times or removes them.
CREATE FUNCTION {schema}.move_clock(
    p_moved_ms bigint, p_step_ms bigint, p_read timestamptz, p_steady boolean, p_now {schema}.injected_time
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_step interval := make_interval(secs => p_step_ms / 1000.0);
    -- What had passed before a step forward stays passed; what lies in the past after a step back is as due as before.
    v_after timestamptz := p_read - greatest(v_step, interval '0');
BEGIN
    IF p_read IS NULL OR abs(extract(epoch FROM coalesce(p_now, clock_timestamp()) - p_read)) > 5 THEN
        RETURN false;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE {schema}.clock c
    SET latest_at = CASE WHEN p_step_ms = 0 THEN greatest(c.latest_at, p_read) ELSE p_read END,
        steady_at = CASE WHEN p_steady THEN p_read ELSE c.steady_at + v_step END,
        moved_ms = c.moved_ms + p_step_ms
    WHERE c.moved_ms = p_moved_ms;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_step_ms = 0 THEN
        RETURN true;
    END IF;
    -- A lease that a step back would end was given after it, by a process that did not notice: its time is right.
    UPDATE {schema}.outstanding o SET due_at = o.due_at + v_step WHERE o.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {schema}.outstanding x
        WHERE x.due_at > v_after AND x.due_at < 'infinity' AND (x.owner IS NULL OR x.due_at + v_step > p_read)
        FOR UPDATE SKIP LOCKED));
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
COMMENT ON FUNCTION {schema}.move_clock IS 'granted to consumer: moves deadlines when the clock stepped';

-- Limits of a group, over all processes. A claim without limits comes by none of this, and settlements never do: what
-- is in flight is counted where it is, in "outstanding", under a lock of the group's row here, which every limited claim
-- takes before any row or cursor of the subscription, and only where there is something to hand out. The row is of claims alone:
-- heartbeats and registrations do not wait for a busy group. A claim that is held back is repeated a little later;
-- docs/decisions/0011 says why no process is woken.

-- A row for each group that ever had limits; the token bucket is null until it is first used.
CREATE TABLE {schema}.group_rate (
    subscription_id integer PRIMARY KEY REFERENCES {schema}.subscription ON DELETE CASCADE,
    tokens          double precision,
    filled_at       timestamptz
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- How many messages a span of offsets counts as: in an ordered subscription one in p_lanes is the holder's.
CREATE FUNCTION {schema}.messages_in(p_span bigint, p_lanes integer) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT (p_span + greatest(p_lanes, 1) - 1) / greatest(p_lanes, 1) $$;

-- What the limits of a want leave at this moment: free places in flight, tokens in the bucket, and the smaller as room.
CREATE FUNCTION {schema}.measure(p_want {schema}.want, p_now timestamptz) RETURNS {schema}.want
LANGUAGE plpgsql AS $$
DECLARE
    w {schema}.want := p_want;
BEGIN
    -- Read here, not when the claim began: it may have waited for the lock, and time must not run backwards from one
    -- claim to the next.
    w.filled_at := coalesce(p_now, clock_timestamp());
    IF w.in_flight_max IS NOT NULL THEN
        SELECT greatest(w.in_flight_max - coalesce(sum(l.messages), 0), 0) INTO w.free
        FROM (SELECT {schema}.messages_in(sum(o.last_offset - o.first_offset + 1)::bigint, w.lanes) AS messages
              FROM {schema}.outstanding o
              WHERE o.subscription_id = w.subscription_id AND o.due_at > w.filled_at AND o.owner IS NOT NULL
              GROUP BY o.token) l;
    END IF;
    IF w.rate IS NOT NULL THEN
        -- A clock that jumped back adds nothing and takes nothing away, and from now on the bucket fills again.
        SELECT g.tokens + greatest(extract(epoch FROM w.filled_at - g.filled_at)::double precision, 0) * w.rate,
               g.filled_at > w.filled_at
        INTO w.tokens, w.turned_back FROM {schema}.group_rate g WHERE g.subscription_id = w.subscription_id;
        -- Full when never used.
        w.tokens := least(w.tokens, w.burst);
    END IF;
    -- A token this close to whole is whole: 100 ms at ten a second must be one message, whatever binary fractions say.
    w.room := least(w.messages_max, w.free, floor(w.tokens + 1e-9)::bigint);
    RETURN w;
END $$;

-- Narrows a want to what its limits leave. Without room it takes no lock: many may be looking.
CREATE FUNCTION {schema}.allow(p_want {schema}.want, p_now timestamptz) RETURNS {schema}.want
LANGUAGE plpgsql AS $$
DECLARE
    w {schema}.want := {schema}.measure(p_want, p_now);
BEGIN
    IF w.room > 0 OR w.turned_back THEN
        PERFORM FROM {schema}.group_rate g WHERE g.subscription_id = w.subscription_id FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO {schema}.group_rate (subscription_id) VALUES (w.subscription_id) ON CONFLICT (subscription_id) DO NOTHING;
            PERFORM FROM {schema}.group_rate g WHERE g.subscription_id = w.subscription_id FOR UPDATE;
        END IF;
        w := {schema}.measure(p_want, p_now);
    END IF;
    w.messages_max := w.room;
    RETURN w;
END $$;

-- Whether there is something beyond a cursor of a subscription.
CREATE FUNCTION {schema}.is_behind(p_want {schema}.want) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM generate_series(0, greatest(p_want.lanes, 1) - 1) AS l (lane)
        CROSS JOIN LATERAL (SELECT q.next_offset FROM {schema}.cursor q WHERE q.subscription_id = p_want.subscription_id
                            AND q.lane = l.lane ORDER BY q.era LIMIT 1) c
        WHERE c.next_offset <= (SELECT h.head FROM {schema}.head h WHERE h.topic_id = p_want.topic_id ORDER BY h.era LIMIT 1));
END $$;

-- Takes the tokens for what was handed out. Returns in how many milliseconds to look again if a limit is reached and
-- more is there; null otherwise.
CREATE FUNCTION {schema}.spend(p_want {schema}.want, p_given bigint, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_tokens double precision := p_want.tokens - p_given;
    v_held_ms bigint;
BEGIN
    IF p_given > 0 OR p_want.turned_back THEN
        INSERT INTO {schema}.group_rate AS g (subscription_id, tokens, filled_at)
        SELECT p_want.subscription_id, v_tokens, p_want.filled_at WHERE p_want.rate IS NOT NULL
        ON CONFLICT (subscription_id) DO UPDATE SET tokens = excluded.tokens, filled_at = excluded.filled_at;
    END IF;
    v_held_ms := greatest(
        CASE WHEN v_tokens + 1e-9 < 1 THEN greatest(ceil((1 - v_tokens) / p_want.rate * 1000 - 1e-6), 1) END,
        CASE WHEN p_want.free <= p_given THEN 25 END);
    IF v_held_ms IS NOT NULL AND (
            {schema}.any_due(p_want.subscription_id, p_want.due_since, p_now, false) OR {schema}.is_behind(p_want)) THEN
        RETURN v_held_ms;
    END IF;
    RETURN NULL;
END $$;

-- The subscriptions for which a claim may find something. One is quiet if it is active, is past the head, and a claim that finds nothing
-- would not ask to be repeated: recheck_ms() is the very function that claims ask. It knows of offsets that are taken and not there yet,
-- of what is due or will be, of gaps and of scheduled messages. Reads only.
CREATE FUNCTION {schema}.claimable(p_subscription_ids integer[], p_now {schema}.injected_time) RETURNS TABLE (subscription_id integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    RETURN QUERY
    SELECT i.id FROM unnest(p_subscription_ids) AS i(id)
    LEFT JOIN {schema}.subscription s ON s.subscription_id = i.id AND s.status = 'active'
    LEFT JOIN {schema}.head h ON h.topic_id = s.topic_id
    WHERE h.topic_id IS NULL
       OR EXISTS (SELECT FROM {schema}.cursor c WHERE c.subscription_id = i.id AND c.next_offset <= h.head)
       -- What is parked becomes free with the ack of another process, which may end before it wakes anyone.
       OR EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = i.id AND o.parked)
       OR {schema}.recheck_ms(i.id, s.topic_id, '-infinity', v_now) IS NOT NULL;
END $$;
COMMENT ON FUNCTION {schema}.claimable IS 'granted to consumer: which subscriptions a claim may find something for';

SELECT {schema}.grant_roles();
