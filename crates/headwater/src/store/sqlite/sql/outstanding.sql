-- name: crowd
-- Purpose:    The first waiting range beyond the limit of a step that begins at an offset.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset, ?4 how many ranges a step may read
-- Index:      headwater_outstanding_place, as many entries
SELECT first_offset
FROM headwater_outstanding INDEXED BY headwater_outstanding_place
WHERE subscription_id = ?1 AND owner IS NULL AND first_offset BETWEEN ?2 AND ?3
ORDER BY first_offset
LIMIT 1 OFFSET ?4

-- name: leased
-- Purpose:    The leased ranges of a subscription that overlap some offsets, of all its lanes.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset
-- Index:      headwater_outstanding_leased, over what is in flight
SELECT lane, first_offset, last_offset, token
FROM headwater_outstanding INDEXED BY headwater_outstanding_leased
WHERE subscription_id = ?1 AND owner IS NOT NULL AND first_offset <= ?3 AND last_offset >= ?2

-- name: lowest
-- Purpose:    The lowest outstanding offset of a subscription.
-- Parameters: ?1 subscription_id
-- Index:      headwater_outstanding_leased, over what is in flight; headwater_outstanding_place, its first entry
SELECT min(lowest)
FROM (
    SELECT min(first_offset) AS lowest
    FROM headwater_outstanding INDEXED BY headwater_outstanding_leased
    WHERE subscription_id = ?1 AND owner IS NOT NULL
    UNION ALL
    SELECT min(first_offset)
    FROM headwater_outstanding INDEXED BY headwater_outstanding_place
    WHERE subscription_id = ?1 AND owner IS NULL
)

-- name: outstanding
-- Purpose:    The outstanding ranges of a subscription, oldest due first, parked last.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      headwater_outstanding_leased, headwater_outstanding_waiting: every row is in one of them; sorted, for operators only
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_outstanding
WHERE subscription_id = ?1 AND owner IS NOT NULL
UNION ALL
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_outstanding INDEXED BY headwater_outstanding_waiting
WHERE subscription_id = ?1 AND owner IS NULL
ORDER BY parked, due_at_ms, first_offset, lane
LIMIT ?2

-- name: waiting
-- Purpose:    The waiting ranges of a subscription that overlap some offsets, of all its lanes. Ranges of one lane never overlap:
--             of those that begin before the offsets, only the last of each lane can overlap them.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset
-- Index:      headwater_outstanding_place, as many entries as begin there; one of it, and one per lane of headwater_outstanding_lane
SELECT lane, first_offset, last_offset, token
FROM headwater_outstanding INDEXED BY headwater_outstanding_place
WHERE subscription_id = ?1 AND owner IS NULL AND first_offset BETWEEN ?2 AND ?3
UNION ALL
SELECT lane, first_offset, last_offset, token
FROM headwater_outstanding
WHERE (token, first_offset) = (
        SELECT before.token, before.first_offset
        FROM headwater_outstanding AS before INDEXED BY headwater_outstanding_place
        WHERE before.subscription_id = ?1 AND before.owner IS NULL AND before.first_offset < ?2
        ORDER BY before.first_offset DESC
        LIMIT 1
    )
    AND lane IS NULL AND last_offset >= ?2
UNION ALL
SELECT range.lane, range.first_offset, range.last_offset, range.token
FROM headwater_cursor AS cursor
JOIN headwater_outstanding AS range INDEXED BY headwater_outstanding_lane
    ON range.subscription_id = ?1 AND range.lane = cursor.lane AND range.first_offset = (
        SELECT max(before.first_offset)
        FROM headwater_outstanding AS before INDEXED BY headwater_outstanding_lane
        WHERE before.subscription_id = ?1 AND before.lane = cursor.lane AND before.first_offset < ?2
    )
WHERE cursor.subscription_id = ?1 AND range.owner IS NULL AND range.last_offset >= ?2
