-- name: create
-- Purpose:    Adds a token, unless there is one of its name.
-- Parameters: ?1 token_id, ?2 name, ?3 scopes, ?4 topics, ?5 hash, ?6 expires_at_ms, ?7 now_ms
-- Index:      headwater_token_name
INSERT INTO headwater_token (token_id, name, scopes, topics, hash, expires_at_ms, created_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT DO NOTHING

-- name: list
-- Purpose:    All tokens, by name, without sessions.
-- Parameters: none
-- Index:      headwater_token_name, in its order
SELECT token_id, name, scopes, topics, created_at_ms * 1000 AS created_at_us, rotated_at_ms * 1000 AS rotated_at_us,
    old_until_ms * 1000 AS old_until_us, expires_at_ms * 1000 AS expires_at_us
FROM headwater_token
WHERE session_of IS NULL
ORDER BY name

-- name: any
-- Purpose:    1 if there is a token, else 0.
-- Parameters: none
-- Index:      headwater_token_name, its first entry
SELECT count(*) AS tokens
FROM (SELECT 1 FROM headwater_token WHERE session_of IS NULL LIMIT 1)

-- name: find
-- Purpose:    A token or a session, with the hashes of its secrets. Name and rights of a session are those of its token.
-- Parameters: $1 token_id
-- Index:      the primary key
SELECT token.token_id, token.session_of, own.name, own.scopes, own.topics, token.hash, token.old_hash,
    token.created_at_ms * 1000 AS created_at_us, token.rotated_at_ms * 1000 AS rotated_at_us,
    token.old_until_ms * 1000 AS old_until_us,
    CASE
        WHEN own.expires_at_ms < token.expires_at_ms OR token.expires_at_ms IS NULL THEN own.expires_at_ms
        ELSE token.expires_at_ms
    END * 1000 AS expires_at_us
FROM headwater_token AS token
JOIN headwater_token AS own ON own.token_id = coalesce(token.session_of, token.token_id)
WHERE token.token_id = $1

-- name: show
-- Purpose:    The name of a token that is no session, and when it expires.
-- Parameters: ?1 token_id
-- Index:      the primary key
SELECT name, expires_at_ms
FROM headwater_token
WHERE token_id = ?1 AND session_of IS NULL

-- name: rotate
-- Purpose:    Gives a token another secret, and keeps the one before for a while.
-- Parameters: ?1 token_id, ?2 hash, ?3 until when the one before is accepted, ?4 now_ms
-- Index:      the primary key
UPDATE headwater_token
SET old_hash = hash, old_until_ms = ?3, hash = ?2, rotated_at_ms = ?4
WHERE token_id = ?1 AND session_of IS NULL

-- name: revoke
-- Purpose:    Removes a token with its sessions.
-- Parameters: ?1 token_id
-- Index:      the primary key; headwater_token_session for the sessions
DELETE FROM headwater_token
WHERE token_id = ?1 AND session_of IS NULL

-- name: end_sessions
-- Purpose:    Removes the sessions of a token.
-- Parameters: ?1 token_id
-- Index:      headwater_token_session
DELETE FROM headwater_token
WHERE session_of = ?1

-- name: forget_sessions
-- Purpose:    Removes sessions that have expired.
-- Parameters: ?1 now_ms
-- Index:      headwater_token_session, over all sessions
DELETE FROM headwater_token
WHERE session_of IS NOT NULL AND expires_at_ms <= ?1

-- name: start_session
-- Purpose:    Adds a session of a token.
-- Parameters: ?1 token_id of the session, ?2 of its token, ?3 hash, ?4 expires_at_ms, ?5 now_ms
-- Index:      the primary key
INSERT INTO headwater_token (token_id, session_of, name, scopes, topics, hash, expires_at_ms, created_at_ms)
SELECT ?1, token_id, name, scopes, topics, ?3, ?4, ?5
FROM headwater_token
WHERE token_id = ?2 AND session_of IS NULL

-- name: end_session
-- Purpose:    Removes a session.
-- Parameters: ?1 token_id
-- Index:      the primary key
DELETE FROM headwater_token
WHERE token_id = ?1 AND session_of IS NOT NULL
