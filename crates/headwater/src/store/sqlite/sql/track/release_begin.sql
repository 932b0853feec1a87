-- Purpose:    A subscription does not count any more: pending records are to let go of it, or there are none.
-- Parameters: ?1 subscription_id, ?2 released_until
-- Index:      the primary key
UPDATE headwater_subscription
SET released_until = ?2
WHERE subscription_id = ?1
