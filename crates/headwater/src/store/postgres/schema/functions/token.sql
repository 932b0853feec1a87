-- API tokens of servers. The table is readable by no role: these functions are its whole surface, and only the operator's role calls them.

-- A time as the program reads it.
CREATE OR REPLACE FUNCTION {schema}.as_microseconds(p_at timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT (extract(epoch FROM p_at) * 1000000)::bigint $$;

-- All tokens, by name, without sessions and without hashes.
CREATE OR REPLACE FUNCTION {schema}.list_tokens()
RETURNS TABLE (token_id text, name text, scopes text, topics text, created_at_us bigint, rotated_at_us bigint, old_until_us bigint,
               expires_at_us bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.token_id, t.name, t.scopes::text, t.topics::text, {schema}.as_microseconds(t.created_at), {schema}.as_microseconds(t.rotated_at),
           {schema}.as_microseconds(t.old_until), {schema}.as_microseconds(t.expires_at)
    FROM {schema}.token t WHERE t.session_of IS NULL ORDER BY t.name
$$;

-- 1 if there is a token, else 0.
CREATE OR REPLACE FUNCTION {schema}.any_token() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM {schema}.token t WHERE t.session_of IS NULL) THEN 1 ELSE 0 END
$$;

-- A token or a session, with the hashes of its secrets. Name and rights of a session are those of its token.
CREATE OR REPLACE FUNCTION {schema}.find_token(p_id text)
RETURNS TABLE (token_id text, session_of text, name text, scopes text, topics text, hash text, old_hash text, created_at_us bigint,
               rotated_at_us bigint, old_until_us bigint, expires_at_us bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.token_id, t.session_of, o.name, o.scopes::text, o.topics::text, t.hash, t.old_hash, {schema}.as_microseconds(t.created_at),
           {schema}.as_microseconds(t.rotated_at), {schema}.as_microseconds(t.old_until),
           {schema}.as_microseconds(least(t.expires_at, o.expires_at))
    FROM {schema}.token t JOIN {schema}.token o ON o.token_id = coalesce(t.session_of, t.token_id)
    WHERE t.token_id = p_id
$$;

-- By an operator: adds a token: 1, or 0 if there is one of its name.
CREATE OR REPLACE FUNCTION {schema}.create_token(
    p_id text, p_name text, p_scopes jsonb, p_topics jsonb, p_hash text, p_expires_in_ms bigint, p_actor text, p_now {schema}.injected_time
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_created integer;
BEGIN
    INSERT INTO {schema}.token (token_id, name, scopes, topics, hash, expires_at, created_at)
    VALUES (p_id, p_name, p_scopes, p_topics, p_hash, v_now + make_interval(secs => p_expires_in_ms / 1000.0), v_now)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_created = ROW_COUNT;
    IF v_created > 0 THEN
        PERFORM {schema}.note_act(p_actor, 'create_token', NULL, NULL,
                                  jsonb_build_object('token', p_name, 'id', p_id, 'scopes', p_scopes, 'topics', p_topics), p_now);
    END IF;
    RETURN v_created;
END $$;

-- By an operator: gives a token another secret and keeps the one before for a while; its sessions end. 1, or 0 if there is none.
CREATE OR REPLACE FUNCTION {schema}.rotate_token(p_id text, p_hash text, p_grace_ms bigint, p_actor text, p_now {schema}.injected_time)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_name text;
BEGIN
    UPDATE {schema}.token t
    SET old_hash = t.hash, old_until = v_now + make_interval(secs => p_grace_ms / 1000.0), hash = p_hash, rotated_at = v_now
    WHERE t.token_id = p_id AND t.session_of IS NULL RETURNING t.name INTO v_name;
    IF v_name IS NULL THEN
        RETURN 0;
    END IF;
    DELETE FROM {schema}.token t WHERE t.session_of = p_id;
    PERFORM {schema}.note_act(p_actor, 'rotate_token', NULL, NULL,
                              jsonb_build_object('token', v_name, 'id', p_id, 'grace_ms', p_grace_ms), p_now);
    RETURN 1;
END $$;

-- By an operator: removes a token with its sessions: 1, or 0 if there is none.
CREATE OR REPLACE FUNCTION {schema}.revoke_token(p_id text, p_actor text, p_now {schema}.injected_time) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_name text;
BEGIN
    DELETE FROM {schema}.token t WHERE t.token_id = p_id AND t.session_of IS NULL RETURNING t.name INTO v_name;
    IF v_name IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM {schema}.note_act(p_actor, 'revoke_token', NULL, NULL, jsonb_build_object('token', v_name, 'id', p_id), p_now);
    RETURN 1;
END $$;

-- Starts a session of a token, and removes sessions that have expired: 1, or 0 if there is no such token.
CREATE OR REPLACE FUNCTION {schema}.start_session(
    p_id text, p_token text, p_hash text, p_lasts_ms bigint, p_actor text, p_now {schema}.injected_time
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_name text;
BEGIN
    -- Those that another session removes at this moment are left to it.
    DELETE FROM {schema}.token d WHERE d.token_id IN (
        SELECT t.token_id FROM {schema}.token t WHERE t.session_of IS NOT NULL AND t.expires_at <= v_now FOR UPDATE SKIP LOCKED);
    INSERT INTO {schema}.token (token_id, session_of, name, scopes, topics, hash, expires_at, created_at)
    SELECT p_id, t.token_id, t.name, t.scopes, t.topics, p_hash, least(v_now + make_interval(secs => p_lasts_ms / 1000.0), t.expires_at), v_now
    FROM {schema}.token t WHERE t.token_id = p_token AND t.session_of IS NULL
    RETURNING token.name INTO v_name;
    IF v_name IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM {schema}.note_act(p_actor, 'start_session', NULL, NULL, jsonb_build_object('token', v_name, 'id', p_token), p_now);
    RETURN 1;
END $$;

-- Ends a session: 1, or 0 if there is none.
CREATE OR REPLACE FUNCTION {schema}.end_session(p_id text, p_now {schema}.injected_time) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_ended integer;
BEGIN
    DELETE FROM {schema}.token t WHERE t.token_id = p_id AND t.session_of IS NOT NULL;
    GET DIAGNOSTICS v_ended = ROW_COUNT;
    RETURN v_ended;
END $$;
