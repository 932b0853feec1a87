-- Purpose: forget what vanished processes told, and expired dedup keys.
-- Parameters: rows at most of each, injected time.
-- Index: dedup_expiry.
SELECT {schema}.forget_old($1, $2::timestamptz) AS forgotten
