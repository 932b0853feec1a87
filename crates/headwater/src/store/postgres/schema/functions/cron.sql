-- Ticks of cron jobs: each is fired once, by the first process.

-- The last tick fired of a job; a new job begins at p_first.
CREATE OR REPLACE FUNCTION {schema}.cron_last(p_job text, p_first timestamptz) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_last timestamptz;
BEGIN
    SELECT c.last_tick INTO v_last FROM {schema}.cron c WHERE c.job = p_job;
    IF NOT FOUND THEN
        INSERT INTO {schema}.cron AS c (job, last_tick) VALUES (p_job, p_first) ON CONFLICT (job) DO NOTHING;
        -- Another session may have inserted the job first; then its value counts.
        SELECT c.last_tick INTO STRICT v_last FROM {schema}.cron c WHERE c.job = p_job;
    END IF;
    RETURN v_last;
END $$;

-- Stores what a job does, for operators.
CREATE OR REPLACE FUNCTION {schema}.cron_describe(p_job text, p_expression text, p_time_zone text, p_topic text, p_now {schema}.injected_time)
RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE {schema}.cron c
    SET expression = p_expression, time_zone = p_time_zone, topic = p_topic, started_at = coalesce(p_now, clock_timestamp())
    WHERE c.job = p_job
$$;

-- Fires a tick: moves the job forward and publishes, in one transaction. Another session that is firing the same tick blocks this
-- one at the job's row until it ends: if it committed there is nothing left to fire, otherwise this session fires. Returns no row
-- if another session fired the tick.
--
-- A last tick in the future comes from a clock that was ahead: it does not block the job. The clocks of machines may differ by up
-- to five minutes, and two machines that do fire no tick twice: a tick that is itself in the future does not move the job back.
CREATE OR REPLACE FUNCTION {schema}.cron_fire(
    p_job text, p_tick timestamptz, p_topic text, p_message_id uuid, p_payload bytea, p_key text, p_type text,
    p_content_type text, p_headers jsonb, p_correlation_id text, p_dedup_key text, p_deliver_at timestamptz,
    p_now {schema}.injected_time
) RETURNS TABLE (topic_id integer, offsets bigint[], duplicate_of uuid[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_soon timestamptz := coalesce(p_now, clock_timestamp()) + interval '5 minutes';
BEGIN
    INSERT INTO {schema}.cron AS c (job, last_tick) VALUES (p_job, p_tick)
    ON CONFLICT (job) DO UPDATE SET last_tick = excluded.last_tick 
        WHERE c.last_tick < excluded.last_tick
           OR c.last_tick > v_soon AND excluded.last_tick <= v_soon;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT b.topic_id, b.offsets, b.duplicate_of
        FROM {schema}.publish_batch(
            p_topic, ARRAY[p_message_id], ARRAY[p_payload], ARRAY[p_key], ARRAY[p_type], ARRAY[p_content_type],
            CASE WHEN p_headers IS NOT NULL THEN ARRAY[p_headers] END, ARRAY[p_correlation_id],
            CASE WHEN p_dedup_key IS NOT NULL THEN ARRAY[p_dedup_key] END,
            CASE WHEN p_deliver_at IS NOT NULL THEN ARRAY[p_deliver_at] END, p_now, true) b;
END $$;
