-- Purpose: read the clock for the elapsed time.
-- Parameters: injected time.
-- Index: clock_pkey.
SELECT {schema}.elapse($1::timestamptz) AS elapsed_ms
