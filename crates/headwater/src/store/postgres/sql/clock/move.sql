-- Purpose: store the time that was read, and move deadlines by a step of the clock; false if another moved them meanwhile.
-- Parameters: by how much deadlines were moved before, the step in ms (0: none), the time, whether the process is steady.
-- Index: one row; after a step scans of what has deadlines.
SELECT {schema}.move_clock($1, $2, $3, $4) AS moved
