-- Purpose:    The proof that an owner's row has; no row for an owner without a heartbeat.
-- Parameters: ?1 owner
-- Index:      the primary key
SELECT proof
FROM headwater_owner
WHERE owner = ?1
