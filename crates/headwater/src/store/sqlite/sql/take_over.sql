-- name: named
-- Purpose:    Whether an owner's row has this proof.
-- Parameters: ?1 proof
-- Index:      a scan of the owners: read when a process starts to consume, to find abandoned files
SELECT EXISTS (SELECT 1 FROM headwater_owner WHERE proof = ?1)

-- name: others
-- Purpose:    The owners with a proof that follow one by name; after the last it continues with the first.
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
-- Purpose:    Registers the proof of an owner.
-- Parameters: ?1 owner, ?2 proof
-- Index:      the primary key
UPDATE headwater_owner
SET proof = ?2
WHERE owner = ?1
