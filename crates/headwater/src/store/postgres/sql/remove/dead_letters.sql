-- Purpose: delete some of the dead letters of a subscription that is removed; how many, and the place of the last.
-- Parameters: topic, group, at most, place before: subscription id, time of burial, offset.
-- Index: subscription_cancelled, dead_letter_subscription.
SELECT subscription_id, buried_at, message_offset, dead_letters FROM {schema}.empty_cancelled($1, $2, $3, $4, $5::timestamptz, $6)
