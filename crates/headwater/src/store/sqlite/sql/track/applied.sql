-- Purpose:    The ranges of a subscription that touch some offsets and whose completion is set in the records. They never
--             overlap: of those that begin before, only the last can reach in.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset
-- Index:      the primary key
SELECT first_offset, last_offset
FROM headwater_applied
WHERE subscription_id = ?1 AND first_offset BETWEEN coalesce((
        SELECT max(before.first_offset) FROM headwater_applied AS before
        WHERE before.subscription_id = ?1 AND before.first_offset < ?2
    ), ?2) AND ?3
    AND last_offset >= ?2
ORDER BY first_offset
