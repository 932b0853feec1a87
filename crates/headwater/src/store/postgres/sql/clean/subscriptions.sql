-- Purpose: one step over the next subscription past its time: a zombie gives up what is removed, an old one is deleted.
-- Parameters: beyond this subscription, older than in ms, injected time.
-- Index: subscription_pkey, primary key of the topic's table, dead_letter_subscription.
SELECT subscription_id, topic, group_name, moved, deleted FROM {schema}.clean_subscription($1, $2::bigint, $3::timestamptz)
