-- name: elect
-- Purpose: elect or confirm the worker of upkeep.
-- Parameters: worker, term in ms, injected time.
-- Index: election_pkey.
SELECT {schema}.elect($1, $2, $3::timestamptz) AS elected

-- name: resign
-- Purpose: the worker of upkeep gives up its term.
-- Parameters: worker.
-- Index: election_pkey.
SELECT {schema}.resign($1)
