-- name: audit
-- Purpose: what was done by operators, newest first.
-- Parameters: at most.
-- Index: audit_pkey.
SELECT acted_at, actor, act, topic, group_name, detail::text AS detail FROM {schema}.audit ORDER BY audit_id DESC LIMIT $1
