-- Heartbeats: an owner reports that it is alive and which subscriptions it serves.
--
-- A heartbeat writes the owner's own row, and a row of "activity" only if something changed: a new subscription, one that is no
-- longer served, other counts. It never writes or waits for the row of a subscription that is alive. So other processes of the
-- group, and claims that hold the subscription's row, do not block it, and an idle process writes one row however many groups it
-- serves. The last heartbeat of a subscription is computed from both tables (view "heard").

-- Returns one row for each subscription, in their order (i), with its state (null: unknown); and one for each other owner that is
-- silent for too long (silent_owner): the caller ends its leases, each in a transaction of its own (end_silent). p_silent_ms is null
-- for an owner whose leases last until their deadlines, unless another heartbeat of the same owner had a value; such a heartbeat does
-- not check other owners either.
--
-- Locks, in their order: dead groups are handled first, because their topic ranges are locked before anything else, and only if their
-- locks are free at once or nearly: whether the process lives must not depend on the locks of one dead group. Then subscriptions that
-- get a row in "activity", if they are free; then the owner's row, which is inserted if there is none; then those of its rows in
-- "activity" that change. Heartbeats, departures and the end of a silent owner hold the owner's row before they write these rows, so
-- two of them exclude each other. Rows of other owners are never locked here: also SKIP LOCKED may wait (functions/locks.sql), for a
-- session that waits for this owner.
CREATE OR REPLACE FUNCTION {schema}.heartbeat(
    p_owner text, p_silent_ms bigint, p_ids integer[], p_processed bigint[], p_failed bigint[], p_filtered bigint[],
    p_rates double precision[], p_means_us bigint[], p_p95s_us bigint[], p_now {schema}.injected_time
) RETURNS TABLE (
    i bigint, topic_id integer, state text, resurrected boolean, missed bigint, missed_first bigint, missed_last bigint,
    silent_owner text, seen_at timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_revived integer[] := {schema}.revive_served(p_ids, p_now);
    v_added integer[];
    v_changed integer[];
    v_seen_at timestamptz;
    v_now timestamptz;
BEGIN
    IF cardinality(v_revived) = 0 THEN
        -- A heartbeat lost in a crash is replaced by the next one.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    -- A new row of "activity" references its subscription, which must not be waited for: if that is locked FOR UPDATE, the next
    -- heartbeat adds the row.
    v_added := ARRAY(SELECT s.subscription_id FROM {schema}.subscription s
                     WHERE s.subscription_id = ANY (p_ids) AND s.state <> 'cancelled' AND NOT EXISTS (
                         SELECT FROM {schema}.activity a WHERE a.subscription_id = s.subscription_id AND a.owner = p_owner)
                     ORDER BY s.subscription_id FOR KEY SHARE OF s SKIP LOCKED);
    SELECT w.seen_at INTO v_seen_at FROM {schema}.owner w WHERE w.owner = p_owner FOR NO KEY UPDATE;
    -- Read after the wait: heartbeats that other owners sent meanwhile must not seem to be of the future.
    v_now := coalesce(p_now, clock_timestamp());
    INSERT INTO {schema}.owner AS w (owner, seen_at, judged) VALUES (p_owner, v_now, p_silent_ms IS NOT NULL)
    ON CONFLICT (owner) DO UPDATE SET seen_at = excluded.seen_at, judged = w.judged OR excluded.judged;
    v_changed := ARRAY(
        SELECT a.subscription_id FROM {schema}.activity a
        WHERE a.owner = p_owner AND a.serving AND a.subscription_id <> ALL (p_ids)
        UNION ALL
        SELECT a.subscription_id
        FROM unnest(p_ids, p_processed, p_failed, p_filtered, p_rates, p_means_us, p_p95s_us)
            AS u (id, processed, failed, filtered, rate, mean_us, p95_us)
        JOIN {schema}.subscription s ON s.subscription_id = u.id AND s.state <> 'cancelled'
        JOIN {schema}.activity a ON a.subscription_id = u.id AND a.owner = p_owner
        -- A time in the future was stored while the clock was ahead.
        WHERE NOT a.serving OR a.served_at > v_now
           OR (a.processed, a.failed, a.filtered, a.rate, a.handling_mean_us, a.handling_p95_us)
              <> (u.processed, u.failed, u.filtered, u.rate, u.mean_us, u.p95_us));
    IF cardinality(v_changed) > 0 THEN
        PERFORM FROM {schema}.activity a WHERE a.subscription_id = ANY (v_changed) AND a.owner = p_owner
        ORDER BY a.subscription_id FOR NO KEY UPDATE;
        -- What is no longer served was served until the last heartbeat.
        UPDATE {schema}.activity a SET serving = false, served_at = greatest(a.served_at, v_seen_at)
        WHERE a.subscription_id = ANY (v_changed) AND a.owner = p_owner AND a.subscription_id <> ALL (p_ids);
        UPDATE {schema}.activity a
        SET processed = u.processed, failed = u.failed, filtered = u.filtered, rate = u.rate, handling_mean_us = u.mean_us,
            handling_p95_us = u.p95_us, serving = true, served_at = v_now
        FROM unnest(p_ids, p_processed, p_failed, p_filtered, p_rates, p_means_us, p_p95s_us)
            AS u (id, processed, failed, filtered, rate, mean_us, p95_us)
        WHERE a.subscription_id = u.id AND a.owner = p_owner AND u.id = ANY (v_changed);
    END IF;
    IF cardinality(v_added) > 0 THEN
        INSERT INTO {schema}.activity (subscription_id, owner, processed, failed, filtered, rate, handling_mean_us,
                                       handling_p95_us, serving, served_at)
        SELECT DISTINCT ON (u.id) u.id, p_owner, u.processed, u.failed, u.filtered, u.rate, u.mean_us, u.p95_us, true, v_now
        FROM unnest(p_ids, p_processed, p_failed, p_filtered, p_rates, p_means_us, p_p95s_us)
            AS u (id, processed, failed, filtered, rate, mean_us, p95_us)
        WHERE u.id = ANY (v_added)
        ORDER BY u.id
        ON CONFLICT (subscription_id, owner) DO NOTHING;
    END IF;
    RETURN QUERY
        SELECT u.i, s.topic_id, s.state, u.id = ANY (v_revived), s.missed, s.missed_first, s.missed_last,
               NULL::text, NULL::timestamptz
        FROM unnest(p_ids) WITH ORDINALITY AS u (id, i) LEFT JOIN {schema}.subscription s ON s.subscription_id = u.id
        ORDER BY u.i;
    -- Two ranges of the index on "seen_at"; the second was stored while the clock was ahead.
    RETURN QUERY
        SELECT NULL::bigint, NULL::integer, NULL::text, NULL::boolean, NULL::bigint, NULL::bigint, NULL::bigint, w.owner, w.seen_at
        FROM ((SELECT x.owner, x.seen_at FROM {schema}.owner x
               WHERE x.judged AND x.seen_at < v_now - make_interval(secs => p_silent_ms / 1000.0) ORDER BY x.seen_at LIMIT 1000)
              UNION ALL
              (SELECT x.owner, x.seen_at FROM {schema}.owner x
               WHERE x.judged AND x.seen_at > v_now + interval '1 second' AND p_silent_ms IS NOT NULL ORDER BY x.seen_at LIMIT 1000)) w
        WHERE w.owner <> p_owner;
END $$;

-- Resurrects those of the subscriptions that are dead. Returns which. If a lock is not free soon, none: the next heartbeat does it.
CREATE OR REPLACE FUNCTION {schema}.revive_served(p_ids integer[], p_now timestamptz) RETURNS integer[]
LANGUAGE plpgsql SET lock_timeout = '250ms' AS $$
DECLARE
    v_dead integer[];
    v_topics integer[];
    v_revived integer[] := '{}';
BEGIN
    SELECT array_agg(s.subscription_id ORDER BY s.topic_id), array_agg(DISTINCT s.topic_id ORDER BY s.topic_id) INTO v_dead, v_topics
    FROM {schema}.subscription s WHERE s.subscription_id = ANY (p_ids) AND s.state = 'dead';
    IF v_dead IS NULL THEN
        RETURN v_revived;
    END IF;
    BEGIN
        FOR i IN 1..cardinality(v_topics) LOOP
            PERFORM {schema}.lock_topic_range(v_topics[i]);
        END LOOP;
        PERFORM {schema}.hold_claims(v_dead, true);
        FOR i IN 1..cardinality(v_dead) LOOP
            IF {schema}.revive(v_dead[i], NULL, coalesce(p_now, clock_timestamp())) THEN
                v_revived := array_append(v_revived, v_dead[i]);
            END IF;
        END LOOP;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        v_revived := '{}';
    END;
    RETURN v_revived;
END $$;
