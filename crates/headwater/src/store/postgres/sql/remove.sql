-- name: remove
-- Purpose: delete a cancelled subscription that is released from the records; tells the state found and how many went.
-- Parameters: topic, group, how many dead letters the steps before deleted, actor, injected time.
-- Index: topic_name_key, subscription_cancelled, dead_letter_subscription.
SELECT state, removed FROM {schema}.remove_subscription($1, $2, $3, $4, $5)

-- name: dead_letters
-- Purpose: delete some of the dead letters of a subscription that is removed; how many, and the place of the last.
-- Parameters: topic, group, at most, place before: subscription id, time of burial, offset.
-- Index: subscription_cancelled, dead_letter_subscription.
SELECT subscription_id, buried_at, message_offset, dead_letters FROM {schema}.empty_cancelled($1, $2, $3, $4, $5::timestamptz, $6)
