-- Purpose: let this session prove that its process lives: take the lock of a key that is new, and remember it.
-- Parameters: key.
-- Index: none.
SELECT pg_try_advisory_lock($1) AS taken, set_config('headwater.proof', $1::bigint::text, false) AS key
