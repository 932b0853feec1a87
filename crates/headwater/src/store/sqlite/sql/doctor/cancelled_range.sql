-- Purpose:    Leases of cancelled subscriptions. What waits for them is left by a crash, and maintenance forgets it.
-- Parameters: none
-- Index:      a scan of outstanding ranges; the primary key
SELECT range.subscription_id, range.token, range.first_offset, range.last_offset
FROM headwater_range AS range
JOIN headwater_subscription AS subscription ON subscription.subscription_id = range.subscription_id
WHERE subscription.status = 'cancelled' AND range.owner IS NOT NULL
