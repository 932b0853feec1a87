-- Purpose: delete a cancelled subscription that is released from the records; tells the state found and how many went.
-- Parameters: topic, group, how many dead letters the steps before deleted, actor, injected time.
-- Index: topic_name_key, subscription_cancelled, dead_letter_subscription.
SELECT state, removed FROM {schema}.remove_subscription($1, $2, $3, $4, $5)
