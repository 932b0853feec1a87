-- name: list
-- Purpose: the positions of a bridge, or of all.
-- Parameters: bridge, or null for all.
-- Index: the primary key.
SELECT p.bridge, p.source, p.position, (extract(epoch FROM p.updated_at) * 1000000)::bigint AS updated_at_us
FROM {schema}.bridge_position p
WHERE $1::text IS NULL OR p.bridge = $1
ORDER BY p.bridge, p.source
