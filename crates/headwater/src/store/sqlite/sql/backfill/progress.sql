-- Purpose:    A batch of a backfill is done.
-- Parameters: ?1 subscription_id, ?2 state, ?3 checkpoint, ?4 now_ms, ?5 ran_ms more, ?6 worker, ?7 worker_until_ms
-- Index:      the primary key
UPDATE headwater_backfill
SET state = ?2, checkpoint = ?3, progressed_at_ms = ?4, ran_ms = ran_ms + ?5, worker = ?6, worker_until_ms = ?7
WHERE subscription_id = ?1
