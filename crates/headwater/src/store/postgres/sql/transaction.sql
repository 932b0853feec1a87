-- name: begin
-- Purpose: mark the transaction just begun, for as long as it lasts, and make its commit wait for the disk and for a
-- synchronous standby.
-- Parameters: the mark.
-- Index: none.
SELECT set_config('headwater.transaction', $1, true),
       CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
            THEN set_config('synchronous_commit', 'on', true) END
