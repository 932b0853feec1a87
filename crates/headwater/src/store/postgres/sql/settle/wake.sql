-- Purpose: wake other processes that wait for a topic, because a lane of it became free.
-- Parameters: topic ids.
-- Index: waiter_pkey.
SELECT {schema}.wake(t, true, false) FROM unnest($1::integer[]) t
