-- Purpose:    Gives an owner a proof.
-- Parameters: ?1 owner, ?2 proof
-- Index:      the primary key
UPDATE headwater_owner
SET proof = ?2
WHERE owner = ?1
