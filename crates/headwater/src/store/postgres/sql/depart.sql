-- name: depart
-- Purpose: forget an owner that leaves on purpose.
-- Parameters: owner.
-- Index: owner_pkey.
SELECT {schema}.depart($1)
