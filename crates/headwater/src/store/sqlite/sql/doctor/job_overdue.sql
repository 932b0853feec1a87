-- Purpose:    Jobs that have run and have not for long.
-- Parameters: ?1 now_ms
-- Index:      the jobs, seven
SELECT job, (?1 - last_run_at_ms) / 1000
FROM headwater_job
WHERE runs > 0 AND last_run_at_ms > 0
    AND last_run_at_ms < ?1 - CASE job
        WHEN 'dead_detection' THEN 3600000
        WHEN 'message_cleanup' THEN 21600000
        WHEN 'subscription_cleanup' THEN 259200000
        ELSE ?1
    END
