-- Purpose: mark the transaction just begun, for as long as it lasts, and make its commit wait for the disk.
-- Parameters: the mark.
-- Index: none.
SELECT set_config('headwater.transaction', $1, true),
       CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
