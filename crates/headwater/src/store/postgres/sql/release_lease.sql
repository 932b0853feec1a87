-- name: release_lease
-- Purpose: end a lease by hand; its topic, or null if there is none of that token.
-- Parameters: token, actor, injected time.
-- Index: outstanding_pkey (token, first_offset).
SELECT {schema}.release_lease($1, $2, $3) AS topic_id
