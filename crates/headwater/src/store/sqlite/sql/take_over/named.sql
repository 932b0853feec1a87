-- Purpose:    Whether an owner's row has this proof.
-- Parameters: ?1 proof
-- Index:      a scan of the owners: read when a process starts to consume, for files that are left
SELECT EXISTS (SELECT 1 FROM headwater_owner WHERE proof = ?1)
