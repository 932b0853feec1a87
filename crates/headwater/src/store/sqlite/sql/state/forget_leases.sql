-- Purpose:    Forgets what a subscription has leased: its tokens are lost.
-- Parameters: ?1 subscription_id
-- Index:      headwater_range_leased, over what is in flight
DELETE FROM headwater_range INDEXED BY headwater_range_leased
WHERE subscription_id = ?1 AND owner IS NOT NULL
