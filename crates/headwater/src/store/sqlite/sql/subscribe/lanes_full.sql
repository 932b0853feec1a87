-- Purpose:    How many lanes of a subscription are full: the rule of the claim.
-- Parameters: ?1 subscription_id, ?2 rows that make a lane full
-- Index:      headwater_range_lane, which is enough
SELECT count(*)
FROM (
    SELECT lane FROM headwater_range
    WHERE subscription_id = ?1 AND lane IS NOT NULL
    GROUP BY lane HAVING count(*) >= ?2
)
