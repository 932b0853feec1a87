-- name: add
-- Purpose:    Adds a relay, unless there is one of its name.
-- Parameters: ?1 name, ?2 source, ?3 target, ?4 settings, ?5 now_ms
-- Index:      the primary key
INSERT INTO headwater_relay (name, source, target, settings, created_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (name) DO NOTHING

-- name: list
-- Purpose:    All relays, by name.
-- Parameters: none
-- Index:      the primary key, in its order
SELECT name, source, target, settings, created_at_ms * 1000 AS created_at_us
FROM headwater_relay
ORDER BY name

-- name: remove
-- Purpose:    Removes a relay.
-- Parameters: ?1 name
-- Index:      the primary key
DELETE FROM headwater_relay
WHERE name = ?1
