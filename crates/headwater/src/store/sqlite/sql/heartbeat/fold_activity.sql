-- Purpose:    Adds what an owner that leaves has done to what is kept of those that left before.
-- Parameters: ?1 owner
-- Index:      a scan of the activities: owners leave rarely
INSERT INTO headwater_activity (
    subscription_id, owner, processed, failed, filtered, rate, handling_mean_us, handling_p95_us, told_at_ms
)
SELECT subscription_id, '', processed, failed, filtered, 0.0, 0, 0, told_at_ms
FROM headwater_activity
WHERE owner = ?1
ON CONFLICT (subscription_id, owner) DO UPDATE SET processed = processed + excluded.processed,
    failed = failed + excluded.failed, filtered = filtered + excluded.filtered,
    told_at_ms = max(told_at_ms, excluded.told_at_ms)
