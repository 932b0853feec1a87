-- Purpose:    Declares an active subscription dead.
-- Parameters: ?1 subscription_id, ?2 now_ms, ?3 elapsed_ms
-- Index:      the primary key
UPDATE headwater_subscription
SET status = 'dead', status_at_ms = ?2, died_elapsed_ms = ?3, suspected_at_ms = NULL
WHERE subscription_id = ?1 AND status = 'active'
