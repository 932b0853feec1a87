-- name: named
-- Purpose:    Whether an owner's row has this proof.
-- Parameters: ?1 proof
-- Index:      a scan of the owners: read when a process starts to consume, for files that are left
SELECT EXISTS (SELECT 1 FROM headwater_owner WHERE proof = ?1)

-- name: others
-- Purpose:    The owners with a proof that follow one by name, and after the last the first ones.
-- Parameters: ?1 owner, ?2 how many at most
-- Index:      the primary key
SELECT owner, proof
FROM (SELECT owner, proof FROM headwater_owner WHERE owner > ?1 AND proof IS NOT NULL ORDER BY owner LIMIT ?2)
UNION ALL
SELECT owner, proof
FROM (SELECT owner, proof FROM headwater_owner WHERE owner < ?1 AND proof IS NOT NULL ORDER BY owner LIMIT ?2)
LIMIT ?2

-- name: proof
-- Purpose:    The proof that an owner's row has; no row for an owner without a heartbeat.
-- Parameters: ?1 owner
-- Index:      the primary key
SELECT proof
FROM headwater_owner
WHERE owner = ?1

-- name: prove
-- Purpose:    Gives an owner a proof.
-- Parameters: ?1 owner, ?2 proof
-- Index:      the primary key
UPDATE headwater_owner
SET proof = ?2
WHERE owner = ?1
