-- Purpose:    A backfill changes its state; whoever had it has it no more.
-- Parameters: ?1 subscription_id, ?2 state, ?3 error
-- Index:      the primary key
UPDATE headwater_backfill
SET state = ?2, error = ?3, worker = NULL, worker_until_ms = NULL
WHERE subscription_id = ?1
