-- Purpose:    Completes the backfills of a topic: its records are made anew, with every group in them.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few; the primary key
UPDATE headwater_backfill
SET state = 'completed', checkpoint = last_offset, error = NULL, worker = NULL, worker_until_ms = NULL
WHERE subscription_id IN (SELECT subscription_id FROM headwater_subscription WHERE topic_id = ?1)
