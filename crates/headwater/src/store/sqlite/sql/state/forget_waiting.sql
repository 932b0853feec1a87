-- Purpose:    Forgets some of what waits for a subscription.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      headwater_range_place, its first entries; the primary key
DELETE FROM headwater_range
WHERE (token, first_offset) IN (
    SELECT waiting.token, waiting.first_offset
    FROM headwater_range AS waiting INDEXED BY headwater_range_place
    WHERE waiting.subscription_id = ?1 AND waiting.owner IS NULL
    ORDER BY waiting.first_offset
    LIMIT ?2
)
