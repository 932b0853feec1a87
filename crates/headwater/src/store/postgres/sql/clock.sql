-- name: move
-- Purpose: store the time that was read, and move deadlines by a step of the clock; false if another moved them meanwhile.
-- Parameters: by how much deadlines were moved before, the step in ms (0: none), the time that was read, whether the
-- process is steady, injected time.
-- Index: one row; after a step scans of what has deadlines.
SELECT {schema}.move_clock($1, $2, $3, $4, $5::timestamptz) AS moved

-- name: read
-- Purpose: read the time, and what is known of the clock.
-- Parameters: injected time.
-- Index: one row.
SELECT now, latest_at, steady_at, moved_ms FROM {schema}.read_clock($1::timestamptz)
