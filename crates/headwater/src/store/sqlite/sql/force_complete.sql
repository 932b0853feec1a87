-- name: missed
-- Purpose:    Adds to the missed messages of a subscription.
-- Parameters: ?1 subscription_id, ?2 how many, ?3 the first, ?4 the last
-- Index:      the primary key
UPDATE headwater_subscription
SET missed = missed + ?2, missed_first = min(coalesce(missed_first, ?3), ?3),
    missed_last = max(coalesce(missed_last, ?4), ?4)
WHERE subscription_id = ?1
