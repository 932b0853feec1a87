-- Purpose: one round of upkeep over all topics.
-- Parameters: promote at most, rows at most per advance, gaps at most, injected time.
-- Index: schedule_due, dedup_expiry, head_pkey.
SELECT promoted, late, closed, dedup_forgotten FROM {schema}.maintain($1, $2, $3, $4)
