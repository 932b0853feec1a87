-- Purpose: one round of upkeep over all topics, their heads apart.
-- Parameters: promote at most, injected time.
-- Index: schedule_due, dedup_expiry.
SELECT promoted, dedup_forgotten FROM {schema}.maintain($1, $2::timestamptz)
