-- Purpose:    Notes what a process has done for a subscription.
-- Parameters: ?1 subscription_id, ?2 owner, ?3 processed, ?4 failed, ?5 filtered, ?6 rate, ?7 handling_mean_us, ?8
--             handling_p95_us, ?9 now_ms
-- Index:      the primary key
INSERT INTO headwater_activity (
    subscription_id, owner, processed, failed, filtered, rate, handling_mean_us, handling_p95_us, told_at_ms
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (subscription_id, owner) DO UPDATE SET processed = excluded.processed, failed = excluded.failed,
    filtered = excluded.filtered, rate = excluded.rate, handling_mean_us = excluded.handling_mean_us,
    handling_p95_us = excluded.handling_p95_us, told_at_ms = excluded.told_at_ms
