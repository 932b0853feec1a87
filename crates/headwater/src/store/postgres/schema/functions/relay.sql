-- Registered relays.

-- By an operator: adds a relay: 1, or 0 if there is one of its name.
CREATE OR REPLACE FUNCTION {schema}.add_relay(
    p_name text, p_source text, p_target text, p_settings text, p_actor text, p_now {schema}.injected_time
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_added integer;
BEGIN
    INSERT INTO {schema}.relay (name, source, target, settings, created_at)
    VALUES (p_name, p_source, p_target, p_settings, coalesce(p_now, clock_timestamp()))
    ON CONFLICT (name) DO NOTHING;
    GET DIAGNOSTICS v_added = ROW_COUNT;
    IF v_added > 0 THEN
        PERFORM {schema}.note_act(p_actor, 'add_relay', NULL, NULL,
                                  jsonb_build_object('relay', p_name, 'source', p_source, 'target', p_target), p_now);
    END IF;
    RETURN v_added;
END $$;

-- By an operator: removes a relay: 1, or 0 if there is none of this name.
CREATE OR REPLACE FUNCTION {schema}.remove_relay(p_name text, p_actor text, p_now {schema}.injected_time) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_removed integer;
BEGIN
    DELETE FROM {schema}.relay r WHERE r.name = p_name;
    GET DIAGNOSTICS v_removed = ROW_COUNT;
    IF v_removed > 0 THEN
        PERFORM {schema}.note_act(p_actor, 'remove_relay', NULL, NULL, jsonb_build_object('relay', p_name), p_now);
    END IF;
    RETURN v_removed;
END $$;
