-- Purpose:    Forgets what processes told that have been silent since a time.
-- Parameters: ?1 since_ms, ?2 at most
-- Index:      a scan: as many rows as processes
DELETE FROM headwater_activity
WHERE (subscription_id, owner) IN (
    SELECT subscription_id, owner FROM headwater_activity
    WHERE told_at_ms <= ?1
    LIMIT ?2
)
