-- Owners that say they are alive.
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

-- Says that an owner is alive, and ends the leases of those that have been silent for too long: one row for each of them
-- that held any.
--
-- It waits only for its own row, and holds nothing then: two beats, or a beat and a claim or settlement, never deadlock. A
-- lease that somebody is settling or extending right now is left to them whole. Its owner's row then stays, and the next
-- beat looks again.
CREATE FUNCTION {schema}.heartbeat(p_owner text, p_silent_ms bigint, p_now timestamptz)
RETURNS TABLE (dead_owner text, leases bigint, topic_ids integer[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    -- A beat lost in a power cut is made up for by the next one; a sweep is lost together with the row it removed.
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO {schema}.owner AS w (owner, seen_at) VALUES (p_owner, v_now)
    ON CONFLICT (owner) DO UPDATE SET seen_at = excluded.seen_at;
    FOR dead_owner IN
        SELECT w.owner FROM {schema}.owner w
        WHERE w.seen_at < v_now - make_interval(secs => p_silent_ms / 1000.0) AND w.owner <> p_owner
        ORDER BY w.seen_at FOR UPDATE SKIP LOCKED
    LOOP
        -- No index finds leases by owner: it would cost every claim and settlement, and owners die rarely.
        WITH locked AS MATERIALIZED (
            SELECT l.token FROM {schema}.outstanding l WHERE l.owner = dead_owner AND l.due_at > v_now FOR UPDATE SKIP LOCKED
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
        IF NOT EXISTS (SELECT FROM {schema}.outstanding o WHERE o.owner = dead_owner AND o.due_at > v_now) THEN
            DELETE FROM {schema}.owner w WHERE w.owner = dead_owner;
        END IF;
        IF leases > 0 THEN
            -- Without looking for a flag: one that is raised while this runs is not seen, and deaths are rare.
            PERFORM {schema}.wake(t, true, true) FROM unnest(topic_ids) t;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- Forgets an owner that leaves on purpose.
CREATE FUNCTION {schema}.depart(p_owner text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM {schema}.owner w WHERE w.owner = p_owner;
END $$;

-- The roles made before get what is new.
DO $$
DECLARE
    v_kind text;
BEGIN
    FOREACH v_kind IN ARRAY ARRAY['producer', 'consumer', 'reader'] LOOP
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}_' || v_kind) THEN
            PERFORM {schema}.grant_role('{name}_' || v_kind, v_kind);
        END IF;
    END LOOP;
END $$;
