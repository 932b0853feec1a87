-- name: prove
-- Purpose: let this session prove that its process lives: take the lock of a key that is new, and remember it.
-- Parameters: key.
-- Index: none.
SELECT pg_try_advisory_lock($1) AS taken, set_config('headwater.proof', $1::bigint::text, false) AS key

-- name: watch
-- Purpose: give an owner this session's proof, and find the owners whose proof is gone: a row for each, or one without an owner.
-- Parameters: owner, key of the session, how many other owners to examine.
-- Index: proof_pkey, owner_pkey.
SELECT current_setting('headwater.proof', true) IS NOT DISTINCT FROM $2::bigint::text AS kept, w.owner, w.key, w.seen_at
FROM (SELECT) one LEFT JOIN {schema}.watch($1, $2, $3) w ON true
