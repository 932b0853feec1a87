-- name: list
-- Purpose: all relays, by name.
-- Parameters: none.
-- Index: none; there are few.
SELECT r.name, r.source, r.target, r.settings, (extract(epoch FROM r.created_at) * 1000000)::bigint AS created_at_us
FROM {schema}.relay r
ORDER BY r.name
