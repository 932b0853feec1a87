-- Purpose:    What the processes of a subscription told of themselves, added up. Of those that are silent only what
--             they did counts, not how fast.
-- Parameters: ?1 subscription_id, ?2 since when a process is not silent
-- Index:      the primary key
SELECT coalesce(sum(processed), 0), coalesce(sum(failed), 0), coalesce(sum(filtered), 0),
    coalesce(sum(CASE WHEN living THEN rate END), 0.0),
    coalesce(
        sum(CASE WHEN living THEN rate * handling_mean_us END) / sum(CASE WHEN living THEN rate END),
        avg(CASE WHEN living THEN handling_mean_us END),
        0.0
    ),
    coalesce(max(CASE WHEN living THEN handling_p95_us END), 0),
    coalesce(sum(living), 0)
FROM (
    SELECT processed, failed, filtered, rate, handling_mean_us, handling_p95_us,
        owner <> '' AND told_at_ms >= ?2 AS living
    FROM headwater_activity
    WHERE subscription_id = ?1
)
