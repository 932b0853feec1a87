-- Purpose:    The owners with a proof that follow one by name, and after the last the first ones.
-- Parameters: ?1 owner, ?2 how many at most
-- Index:      the primary key
SELECT owner, proof
FROM (SELECT owner, proof FROM headwater_owner WHERE owner > ?1 AND proof IS NOT NULL ORDER BY owner LIMIT ?2)
UNION ALL
SELECT owner, proof
FROM (SELECT owner, proof FROM headwater_owner WHERE owner < ?1 AND proof IS NOT NULL ORDER BY owner LIMIT ?2)
LIMIT ?2
