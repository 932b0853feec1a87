-- Purpose:    Moves a subscription from one state to another. What was paused is as if it had just beaten: its processes
--             have the time of a whole timeout to come back.
-- Parameters: ?1 subscription_id, ?2 from, ?3 to, ?4 now_ms
-- Index:      the primary key
UPDATE headwater_subscription
SET status = ?3, status_at_ms = ?4,
    heartbeat_at_ms = CASE WHEN ?3 = 'active' THEN max(heartbeat_at_ms, ?4) ELSE heartbeat_at_ms END
WHERE subscription_id = ?1 AND status = ?2
