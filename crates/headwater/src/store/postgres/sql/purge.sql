-- Purpose: remove dead letters; how many were there.
-- Parameters: subscription id, letters.
-- Index: dead_letter_pkey.
SELECT {schema}.purge($1, $2) AS purged
