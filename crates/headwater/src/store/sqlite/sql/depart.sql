-- name: depart
-- Purpose:    Forgets an owner: it leaves on purpose, or is dead and its leases have ended.
-- Parameters: ?1 owner
-- Index:      the primary key
DELETE FROM headwater_owner
WHERE owner = ?1
