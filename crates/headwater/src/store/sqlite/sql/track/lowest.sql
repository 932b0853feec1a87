-- Purpose:    The lowest offset that a subscription has outstanding.
-- Parameters: ?1 subscription_id
-- Index:      headwater_range_leased, over what is in flight; headwater_range_place, its first entry
SELECT min(lowest)
FROM (
    SELECT min(first_offset) AS lowest
    FROM headwater_range INDEXED BY headwater_range_leased
    WHERE subscription_id = ?1 AND owner IS NOT NULL
    UNION ALL
    SELECT min(first_offset)
    FROM headwater_range INDEXED BY headwater_range_place
    WHERE subscription_id = ?1 AND owner IS NULL
)
