-- Purpose: read the time, and what is known of the clock.
-- Parameters: injected time.
-- Index: one row.
SELECT now, latest_at, steady_at, moved_ms FROM {schema}.read_clock($1::timestamptz)
