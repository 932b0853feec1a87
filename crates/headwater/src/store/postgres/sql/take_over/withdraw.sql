-- Purpose: take back an owner's proof.
-- Parameters: owner.
-- Index: proof_pkey.
SELECT {schema}.withdraw($1)
