-- name: list
-- Purpose: all tokens, by name, without sessions.
-- Parameters: none.
-- Index: token_name_key, in its order.
SELECT t.token_id, t.name, t.scopes, t.topics, t.created_at_us, t.rotated_at_us, t.old_until_us, t.expires_at_us
FROM {schema}.list_tokens() t

-- name: find
-- Purpose: a token or a session, with the hashes of its secrets.
-- Parameters: token id.
-- Index: token_pkey.
SELECT t.token_id, t.session_of, t.name, t.scopes, t.topics, t.hash, t.old_hash, t.created_at_us, t.rotated_at_us, t.old_until_us,
       t.expires_at_us
FROM {schema}.find_token($1) t
