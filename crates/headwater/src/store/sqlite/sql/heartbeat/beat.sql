-- Purpose:    Notes that an owner is alive.
-- Parameters: ?1 owner, ?2 now_ms
-- Index:      the primary key
INSERT INTO headwater_owner (owner, seen_at_ms)
VALUES (?1, ?2)
ON CONFLICT (owner) DO UPDATE SET seen_at_ms = excluded.seen_at_ms
