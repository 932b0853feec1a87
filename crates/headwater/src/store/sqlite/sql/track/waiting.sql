-- Purpose:    The waiting ranges of a subscription that touch some offsets, of all its lanes. Ranges of one lane never overlap:
--             of those that begin before, only the last of each lane can reach in.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset
-- Index:      headwater_range_place, as many entries as begin there; one of it, and one per lane of headwater_range_lane
SELECT lane, first_offset, last_offset, token
FROM headwater_range INDEXED BY headwater_range_place
WHERE subscription_id = ?1 AND owner IS NULL AND first_offset BETWEEN ?2 AND ?3
UNION ALL
SELECT lane, first_offset, last_offset, token
FROM headwater_range
WHERE (token, first_offset) = (
        SELECT before.token, before.first_offset
        FROM headwater_range AS before INDEXED BY headwater_range_place
        WHERE before.subscription_id = ?1 AND before.owner IS NULL AND before.first_offset < ?2
        ORDER BY before.first_offset DESC
        LIMIT 1
    )
    AND lane IS NULL AND last_offset >= ?2
UNION ALL
SELECT range.lane, range.first_offset, range.last_offset, range.token
FROM headwater_cursor AS cursor
JOIN headwater_range AS range INDEXED BY headwater_range_lane
    ON range.subscription_id = ?1 AND range.lane = cursor.lane AND range.first_offset = (
        SELECT max(before.first_offset)
        FROM headwater_range AS before INDEXED BY headwater_range_lane
        WHERE before.subscription_id = ?1 AND before.lane = cursor.lane AND before.first_offset < ?2
    )
WHERE cursor.subscription_id = ?1 AND range.owner IS NULL AND range.last_offset >= ?2
