-- Purpose: settings of the server under which less survives than is promised; one row for each.
-- Parameters: none.
-- Index: none.
SELECT 'fsync_off' AS finding, 'fsync is off: a crash of the machine may lose or damage everything' AS problem
WHERE current_setting('fsync') = 'off'
UNION ALL
SELECT 'full_page_writes_off', 'full_page_writes is off: a crash of the machine may damage pages that were being written'
WHERE current_setting('full_page_writes') = 'off'
UNION ALL
-- What the session began with: Headwater's own sessions are raised.
SELECT 'synchronous_commit_weak',
       format('synchronous_commit is %s for role %s: publishing raises it to on, other commits of the role may be lost',
              s.reset_val, current_user)
FROM pg_settings s WHERE s.name = 'synchronous_commit' AND s.reset_val IN ('off', 'local', 'remote_write')
