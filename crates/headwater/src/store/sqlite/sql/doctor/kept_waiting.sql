-- Purpose:    Subscriptions whose kept numbers of waiting ranges are not what is there.
-- Parameters: none
-- Index:      headwater_range_place for each subscription
SELECT subscription.subscription_id, subscription.waiting, count(waiting.token)
FROM headwater_subscription AS subscription
LEFT JOIN headwater_range AS waiting
    ON waiting.subscription_id = subscription.subscription_id AND waiting.owner IS NULL
GROUP BY subscription.subscription_id
HAVING subscription.waiting <> count(waiting.token)
    OR subscription.waiting_offsets <> coalesce(sum(waiting.last_offset - waiting.first_offset + 1), 0)
    OR subscription.retrying_offsets <> coalesce(sum(
        iif(waiting.parked = 0 AND waiting.attempts > 0, waiting.last_offset - waiting.first_offset + 1, 0)
    ), 0)
