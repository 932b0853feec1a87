-- Purpose: one step over the next subscription past its time: a zombie moves to the watermark, an old one is deleted.
-- Parameters: beyond this subscription, older than in ms, messages or letters at most, injected time.
-- Index: subscription_pkey, primary key of the topic's table, dead_letter_subscription.
SELECT subscription_id, topic, group_name, moved, deleted, more FROM {schema}.clean_subscription($1, $2, $3, $4)
