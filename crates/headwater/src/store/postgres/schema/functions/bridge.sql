-- Positions of bridges, which are moved in the transaction that publishes what a bridge has read.

-- Moves the position of a bridge in a source from where the caller knows it to be (null: it has none): 1, or 0 if it is elsewhere. An open
-- transaction that moved it holds us until it ends: only then is it known whether its messages exist.
CREATE OR REPLACE FUNCTION {schema}.advance_bridge(bridge text, source text, from_position bigint, to_position bigint,
                                                   p_now {schema}.injected_time DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF bridge IS NULL OR source IS NULL OR to_position IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid position: bridge, source and to_position must not be null';
    END IF;
    PERFORM {schema}.check_length('bridge', bridge, 255), {schema}.check_length('source', source, 512);
    IF to_position < coalesce(from_position, 0) THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
            'invalid position: %s is before %s; it only rises, from 0', to_position, coalesce(from_position, 0));
    END IF;
    IF from_position IS NULL THEN
        INSERT INTO {schema}.bridge_position (bridge, source, position, updated_at)
        VALUES (advance_bridge.bridge, advance_bridge.source, to_position, coalesce(p_now, clock_timestamp()))
        ON CONFLICT (bridge, source) DO NOTHING;
    ELSE
        UPDATE {schema}.bridge_position p SET position = to_position, updated_at = coalesce(p_now, clock_timestamp())
        WHERE p.bridge = advance_bridge.bridge AND p.source = advance_bridge.source AND p.position = from_position;
    END IF;
    RETURN FOUND::integer;
END $$;
