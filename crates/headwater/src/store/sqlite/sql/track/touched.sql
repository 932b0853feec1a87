-- Purpose:    What may be done, or not done any more, since tracking last met it: leases that tracking met and that are gone,
--             and what waited or waits.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      the primary keys, over the leases that tracking met and what was touched
SELECT first_offset, token, last_offset
FROM headwater_touched AS touched
WHERE subscription_id = ?1 AND (token = 0 OR NOT EXISTS (
    SELECT 1 FROM headwater_range AS range
    WHERE range.token = touched.token AND range.first_offset = touched.first_offset AND range.last_offset = touched.last_offset
))
ORDER BY first_offset, token
LIMIT ?2
