-- name: depart
-- Purpose:    Removes an owner that leaves on purpose, or is dead and whose leases have ended.
-- Parameters: ?1 owner
-- Index:      the primary key
DELETE FROM headwater_owner
WHERE owner = ?1
