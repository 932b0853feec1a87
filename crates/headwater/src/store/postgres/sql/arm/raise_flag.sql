-- Purpose: say that this process waits for topics, so that publishers notify.
-- Parameters: topic ids, waiter id, for how many ms.
-- Index: waiter_pkey.
SELECT {schema}.raise_flag($1, $2, $3)
