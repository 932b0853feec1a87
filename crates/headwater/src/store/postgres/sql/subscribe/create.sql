-- Purpose: subscribe a group, or find the subscription it has.
-- Parameters: topic, group, start (beginning, now, offset, timestamp, bounded), its number, its time, injected time.
-- Index: subscription_topic_id_group_name_key.
SELECT subscription_id, topic_id FROM {schema}.subscribe($1, $2, $3, $4, $5, $6)
