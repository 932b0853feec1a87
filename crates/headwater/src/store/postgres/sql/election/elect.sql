-- Purpose: elect or confirm the worker of upkeep.
-- Parameters: worker, term in ms, injected time.
-- Index: election_pkey.
SELECT {schema}.elect($1, $2, $3::timestamptz) AS elected
