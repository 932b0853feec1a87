-- Purpose:    Adds what processes did that have been silent since a time to what is kept of those that left.
-- Parameters: ?1 since_ms
-- Index:      a scan: as many rows as processes
INSERT INTO headwater_activity (
    subscription_id, owner, processed, failed, filtered, rate, handling_mean_us, handling_p95_us, told_at_ms
)
SELECT subscription_id, '', sum(processed), sum(failed), sum(filtered), 0.0, 0, 0, max(told_at_ms)
FROM headwater_activity
WHERE told_at_ms <= ?1 AND owner <> ''
GROUP BY subscription_id
ON CONFLICT (subscription_id, owner) DO UPDATE SET processed = processed + excluded.processed,
    failed = failed + excluded.failed, filtered = filtered + excluded.filtered,
    told_at_ms = max(told_at_ms, excluded.told_at_ms)
