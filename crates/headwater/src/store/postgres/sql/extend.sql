-- name: extend
-- Purpose: give leases a new deadline; returns the tokens that were held.
-- Parameters: tokens, subscription ids, owners, lease in ms (0: never), durable, injected time, expected time.
-- Index: outstanding_pkey (token, first_offset).
SELECT extend AS token FROM {schema}.extend($1, $2, $3, $4, $5, $6::timestamptz, $7)
