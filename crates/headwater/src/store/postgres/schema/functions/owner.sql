-- Owners that end: by missing heartbeats, by a lost proof, or on purpose.
--
-- An owner that sends heartbeats counts as dead once they stop, long before its leases expire. The next heartbeat of another
-- owner returns it, and its sender ends those leases: their deadline becomes '-infinity', so that no clock makes their tokens valid again. The rest (a new
-- token, the attempt, the flag "suspect", the log line) is done by the claim that finds them, as for any lease past its deadline.
-- Owners that never send a heartbeat have no row here and only plain leases. Neither claims nor settlements read this table.

-- Ends the leases of a dead owner, and removes the owner. The caller has locked its row, and no row of another owner. A lease that is
-- being settled or extended is left alone entirely: the row of its owner then stays, and the next heartbeat finds it. Leases are locked
-- after the owner: no session that holds one waits for an owner.
CREATE OR REPLACE FUNCTION {schema}.end_leases(p_owner text, p_now timestamptz, OUT leases bigint, OUT topic_ids integer[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- No index finds leases by owner: it would cost every claim and settlement, and owners die rarely.
    WITH locked AS MATERIALIZED (
        SELECT l.token FROM {schema}.outstanding l WHERE l.owner = p_owner AND l.due_at > p_now
        ORDER BY l.subscription_id, l.lane, l.first_offset FOR UPDATE SKIP LOCKED
    ), whole AS (
        -- A lease ends with all its rows or not at all: otherwise a running settlement could find only some of them.
        SELECT k.token FROM locked k GROUP BY k.token
        HAVING count(*) = (SELECT count(*) FROM {schema}.outstanding a WHERE a.token = k.token)
    ), ended AS (
        UPDATE {schema}.outstanding o SET due_at = '-infinity' FROM whole WHERE o.token = whole.token
        RETURNING o.token, o.subscription_id
    )
    SELECT count(DISTINCT e.token), array_agg(DISTINCT s.topic_id) INTO leases, topic_ids
    FROM ended e JOIN {schema}.subscription s ON s.subscription_id = e.subscription_id;
    IF NOT EXISTS (SELECT FROM {schema}.outstanding o WHERE o.owner = p_owner AND o.due_at > p_now) THEN
        PERFORM FROM {schema}.activity a WHERE a.owner = p_owner AND a.serving ORDER BY a.subscription_id FOR NO KEY UPDATE;
        UPDATE {schema}.activity a SET serving = false, served_at = greatest(a.served_at, w.seen_at)
        FROM {schema}.owner w WHERE w.owner = p_owner AND a.owner = p_owner AND a.serving;
        DELETE FROM {schema}.owner w WHERE w.owner = p_owner;
    END IF;
    IF leases > 0 THEN
        -- Without checking flags: a flag raised while this runs is not visible, and dead owners are rare.
        PERFORM {schema}.wake(t, true, true) FROM unnest(topic_ids) t;
    END IF;
END $$;

-- Ends the leases of an owner that heartbeat() returned as silent: no row if it sent a heartbeat since, or held none.
CREATE OR REPLACE FUNCTION {schema}.end_silent(p_owner text, p_seen_at timestamptz, p_silent_ms bigint, p_now {schema}.injected_time)
RETURNS TABLE (leases bigint, topic_ids integer[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    -- A removal of an owner that is lost in a crash restores the owner's row as well.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM FROM {schema}.owner w WHERE w.owner = p_owner AND w.judged AND w.seen_at = p_seen_at FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_seen_at > v_now + interval '1 second' THEN
        -- A time in the future was stored while the clock was ahead: the owner counts as seen now, and not as alive until that time.
        UPDATE {schema}.owner w SET seen_at = v_now WHERE w.owner = p_owner;
    ELSIF p_seen_at < {schema}.before(v_now, p_silent_ms) THEN
        RETURN QUERY SELECT e.leases, e.topic_ids FROM {schema}.end_leases(p_owner, v_now) e WHERE e.leases > 0;
    END IF;
END $$;

-- Registers this session as the proof that p_owner lives, and returns the owners whose proof is gone. It writes only if the owner
-- has another proof: one of an earlier session, or none.
--
-- The session holds the lock of p_key and has the key as a setting. If a pooler runs the statement on another session, that setting
-- differs: then nothing is registered.
--
-- Of all owners it checks the p_others_max that follow p_owner by name, and after the last continues with the first. So each
-- owner is checked by the same number of others, and the cost of a call does not grow with the number of owners. Owners of the
-- same session are not checked: a session can always take its own lock.
CREATE OR REPLACE FUNCTION {schema}.watch(p_owner text, p_key bigint, p_others_max integer)
RETURNS TABLE (owner text, key bigint, seen_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_server_at timestamptz := pg_postmaster_start_time();
BEGIN
    IF current_setting('headwater.proof', true) IS DISTINCT FROM p_key::text THEN
        RETURN;
    END IF;
    -- The lock of the foreign key, taken before it is checked: an owner that another session removes at this moment has no row once
    -- that commits, and has no proof until its next heartbeat, as before its first one. Its session stays.
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
        -- Shared: two sessions that check the same owner at once do not mistake each other for it.
        IF pg_try_advisory_xact_lock_shared(watch.key) THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- Ends the leases of an owner whose proof is gone, as watch() returned it: no row if it sent a heartbeat or registered another
-- proof since. Both rows stay locked until the leases have ended, so another proof is registered either before or after all of
-- this.
CREATE OR REPLACE FUNCTION {schema}.take_over(p_owner text, p_key bigint, p_seen_at timestamptz, p_now {schema}.injected_time)
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

-- Withdraws a proof: its session broke, and the owner is judged only by its heartbeats until it has another.
CREATE OR REPLACE FUNCTION {schema}.withdraw(p_owner text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM {schema}.proof f WHERE f.owner = p_owner
$$;

-- Removes owners without a heartbeat since p_before. Their counts, and when they were last seen, are kept in the row with an empty
-- owner. Locks are taken in their order (functions/locks.sql), and only locked rows are deleted: a heartbeat may have added one since.
-- An owner without a row gets one, which excludes its heartbeats. Only a single owner is waited for (p_wait): of several this session
-- would hold some while it waits. The row of the sums is inserted before any other row of "activity" is locked: an insert that
-- conflicts with another session's would wait while it holds those locks.
CREATE OR REPLACE FUNCTION {schema}.forget_owners(p_owners text[], p_before timestamptz, p_wait boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_ids integer[];
    v_owners text[];
    v_rows tid[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    v_ids := ARRAY(SELECT DISTINCT a.subscription_id FROM {schema}.activity a WHERE a.owner = ANY (p_owners));
    -- A cancelled subscription may be removed meanwhile.
    v_ids := ARRAY(SELECT s.subscription_id FROM {schema}.subscription s WHERE s.subscription_id = ANY (v_ids)
                   ORDER BY s.subscription_id FOR KEY SHARE);
    IF p_wait THEN
        -- Sets the key, so that it is locked as strongly as by FOR UPDATE. If the row is deleted meanwhile, this inserts another.
        INSERT INTO {schema}.owner (owner, seen_at, judged) SELECT o, '-infinity', false FROM unnest(p_owners) o
        ON CONFLICT (owner) DO UPDATE SET owner = excluded.owner;
    ELSE
        INSERT INTO {schema}.owner (owner, seen_at, judged) SELECT o, '-infinity', false FROM unnest(p_owners) o
        WHERE NOT EXISTS (SELECT FROM {schema}.owner x WHERE x.owner = o) ORDER BY o
        ON CONFLICT (owner) DO NOTHING;
    END IF;
    -- An owner that sent a heartbeat since it was chosen stays, with all its rows.
    v_owners := ARRAY(SELECT x.owner FROM {schema}.owner x WHERE x.owner = ANY (p_owners) AND x.seen_at < p_before
                      ORDER BY x.owner FOR UPDATE SKIP LOCKED);
    INSERT INTO {schema}.activity (subscription_id, owner, processed, failed, filtered, rate, handling_mean_us, handling_p95_us, serving, served_at)
    SELECT u, '', 0, 0, 0, 0, 0, 0, false, '-infinity' FROM unnest(v_ids) u
    ON CONFLICT (subscription_id, owner) DO NOTHING;
    v_rows := ARRAY(SELECT a.ctid FROM {schema}.activity a WHERE a.subscription_id = ANY (v_ids) AND a.owner = ANY (v_owners || ''::text)
                    ORDER BY a.subscription_id, a.owner FOR UPDATE);
    WITH gone AS (
        DELETE FROM {schema}.activity a WHERE a.ctid = ANY (v_rows) AND a.owner <> '' RETURNING a.*
    ), sums AS (
        SELECT g.subscription_id, sum(g.processed) AS processed, sum(g.failed) AS failed, sum(g.filtered) AS filtered,
               max(greatest(g.served_at, CASE WHEN g.serving THEN w.seen_at END)) AS served_at
        FROM gone g LEFT JOIN {schema}.owner w ON w.owner = g.owner GROUP BY g.subscription_id
    )
    UPDATE {schema}.activity a
    SET processed = a.processed + g.processed, failed = a.failed + g.failed, filtered = a.filtered + g.filtered,
        served_at = greatest(a.served_at, g.served_at)
    FROM sums g WHERE a.subscription_id = g.subscription_id AND a.owner = '';
    DELETE FROM {schema}.owner w WHERE w.owner = ANY (v_owners);
END $$;

-- Removes an owner that leaves on purpose.
CREATE OR REPLACE FUNCTION {schema}.depart(p_owner text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ SELECT {schema}.forget_owners(ARRAY[p_owner], 'infinity', true) $$;
