-- Heartbeats of groups.

-- A process says that it is alive and serves these subscriptions. One row for each, in their order.
--
-- First the dead, because their extents are locked before anything else; then the stamps. Those are written only where they
-- are older than a quarter of the interval, and what somebody else has locked is skipped: mostly it is another process's
-- stamp. Only a stamp older than half the timeout is waited for, a little: then it is not heartbeats that hold the row but
-- claims with limits, and a busy group must not die of that.
CREATE OR REPLACE FUNCTION {schema}.beat(
    p_owner text, p_ids integer[], p_processed bigint[], p_failed bigint[], p_filtered bigint[], p_rates double precision[],
    p_means_us bigint[], p_p95s_us bigint[], p_now {schema}.injected_time
) RETURNS TABLE (topic_id integer, state text, resurrected boolean, missed bigint, missed_first bigint, missed_last bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_dead integer[];
    v_topics integer[];
    v_revived integer[] := '{}';
BEGIN
    SELECT array_agg(s.subscription_id ORDER BY s.topic_id), array_agg(DISTINCT s.topic_id ORDER BY s.topic_id) INTO v_dead, v_topics
    FROM {schema}.subscription s WHERE s.subscription_id = ANY (p_ids) AND s.status = 'dead';
    IF v_dead IS NOT NULL THEN
        FOR i IN 1..cardinality(v_topics) LOOP
            PERFORM {schema}.lock_extent(v_topics[i]);
        END LOOP;
        PERFORM {schema}.hold_claims(v_dead, true);
        FOR i IN 1..cardinality(v_dead) LOOP
            IF {schema}.revive(v_dead[i], NULL, v_now) THEN
                v_revived := array_append(v_revived, v_dead[i]);
            END IF;
        END LOOP;
    END IF;
    IF cardinality(v_revived) = 0 THEN
        -- A beat lost in a power cut is made up for by the next one.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    WITH due AS MATERIALIZED (
        SELECT s.subscription_id FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
        WHERE s.subscription_id = ANY (p_ids) AND s.status IN ('active', 'paused')
          AND (s.suspected_at IS NOT NULL OR coalesce({schema}.stamp_age_ms(s.heartbeat_at, v_now) * 4 >= t.heartbeat_interval_ms, true))
        ORDER BY s.subscription_id FOR NO KEY UPDATE OF s SKIP LOCKED
    )
    UPDATE {schema}.subscription s SET heartbeat_at = v_now, suspected_at = NULL FROM due WHERE s.subscription_id = due.subscription_id;
    IF EXISTS (SELECT FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
               WHERE s.subscription_id = ANY (p_ids) AND s.status IN ('active', 'paused')
                 AND {schema}.stamp_age_ms(s.heartbeat_at, v_now) * 2 > t.heartbeat_timeout_ms) THEN
        PERFORM {schema}.stamp_overdue(p_ids, v_now);
    END IF;
    PERFORM FROM {schema}.activity a WHERE a.owner = p_owner AND a.subscription_id = ANY (p_ids)
    ORDER BY a.subscription_id FOR UPDATE;
    UPDATE {schema}.activity a
    SET processed = u.processed, failed = u.failed, filtered = u.filtered, rate = u.rate, handling_mean_us = u.mean_us,
        handling_p95_us = u.p95_us, told_at = v_now
    FROM unnest(p_ids, p_processed, p_failed, p_filtered, p_rates, p_means_us, p_p95s_us)
        AS u (id, processed, failed, filtered, rate, mean_us, p95_us)
    JOIN {schema}.subscription s ON s.subscription_id = u.id AND s.status <> 'cancelled'
    WHERE a.subscription_id = u.id AND a.owner = p_owner;
    -- A new row refers to its subscription, which must not be waited for either: if it is locked whole, the next beat tells.
    WITH free AS MATERIALIZED (
        SELECT s.subscription_id FROM {schema}.subscription s
        WHERE s.subscription_id = ANY (p_ids) AND s.status <> 'cancelled' AND NOT EXISTS (
            SELECT FROM {schema}.activity a WHERE a.subscription_id = s.subscription_id AND a.owner = p_owner)
        FOR KEY SHARE OF s SKIP LOCKED
    )
    INSERT INTO {schema}.activity (subscription_id, owner, processed, failed, filtered, rate, handling_mean_us,
                                   handling_p95_us, told_at)
    SELECT DISTINCT ON (u.id) u.id, p_owner, u.processed, u.failed, u.filtered, u.rate, u.mean_us, u.p95_us, v_now
    FROM unnest(p_ids, p_processed, p_failed, p_filtered, p_rates, p_means_us, p_p95s_us)
        AS u (id, processed, failed, filtered, rate, mean_us, p95_us)
    JOIN free ON free.subscription_id = u.id
    ORDER BY u.id
    ON CONFLICT (subscription_id, owner) DO NOTHING;
    RETURN QUERY
        SELECT s.topic_id, s.status, u.id = ANY (v_revived), s.missed, s.missed_first, s.missed_last
        FROM unnest(p_ids) WITH ORDINALITY AS u (id, i) LEFT JOIN {schema}.subscription s ON s.subscription_id = u.id
        ORDER BY u.i;
END $$;

-- Writes stamps that are overdue, waiting for whoever holds the row, but not for long: the next beat tries again.
CREATE OR REPLACE FUNCTION {schema}.stamp_overdue(p_ids integer[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
    UPDATE {schema}.subscription s SET heartbeat_at = p_now, suspected_at = NULL WHERE s.subscription_id = ANY (ARRAY(
        SELECT x.subscription_id FROM {schema}.subscription x JOIN {schema}.topic t ON t.topic_id = x.topic_id
        WHERE x.subscription_id = ANY (p_ids) AND x.status IN ('active', 'paused')
          AND {schema}.stamp_age_ms(x.heartbeat_at, p_now) * 2 > t.heartbeat_timeout_ms
        ORDER BY x.subscription_id FOR NO KEY UPDATE OF x));
EXCEPTION
    WHEN lock_not_available THEN NULL;
END $$;
