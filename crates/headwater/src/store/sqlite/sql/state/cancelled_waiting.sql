-- Purpose:    A cancelled subscription for which something waits.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT subscription_id
FROM headwater_subscription
WHERE status = 'cancelled' AND waiting > 0
LIMIT 1
