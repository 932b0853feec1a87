-- Purpose: the worker of upkeep gives up its term.
-- Parameters: worker.
-- Index: election_pkey.
SELECT {schema}.resign($1)
