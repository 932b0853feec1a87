-- Purpose:    Jobs of upkeep that fail.
-- Parameters: none
-- Index:      the jobs, seven
SELECT job, last_error
FROM headwater_job
WHERE last_error IS NOT NULL
