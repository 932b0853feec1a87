-- name: advance
-- Purpose:    Moves the position of a bridge in a source from where the caller knows it to be; no row is returned if it is elsewhere.
-- Parameters: $1 bridge, $2 source, $3 known position, or null for the first one, $4 new position, $5 now_ms
-- Index:      the primary key
INSERT INTO headwater_bridge_position (bridge, source, position, updated_at_ms)
SELECT $1, $2, $4, $5
WHERE $3 IS NULL
    OR EXISTS (SELECT 1 FROM headwater_bridge_position AS known WHERE known.bridge = $1 AND known.source = $2)
ON CONFLICT (bridge, source) DO UPDATE SET position = excluded.position, updated_at_ms = excluded.updated_at_ms
WHERE headwater_bridge_position.position = $3
RETURNING 1 AS advanced

-- name: list
-- Purpose:    The positions of a bridge, or of all.
-- Parameters: $1 bridge, or null for all
-- Index:      the primary key
SELECT stored.bridge, stored.source, stored.position, stored.updated_at_ms * 1000 AS updated_at_us
FROM headwater_bridge_position AS stored
WHERE $1 IS NULL OR stored.bridge = $1
ORDER BY stored.bridge, stored.source
