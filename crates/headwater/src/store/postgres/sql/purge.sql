-- name: purge
-- Purpose: remove dead letters; how many were there.
-- Parameters: subscription id, letters, how many the steps before purged, whether this is the last step, actor, injected time.
-- Index: dead_letter_pkey.
SELECT {schema}.purge($1, $2, $3, $4, $5, $6::timestamptz) AS purged
