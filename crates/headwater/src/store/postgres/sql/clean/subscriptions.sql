-- Purpose: move zombies to the watermark, delete subscriptions past their time.
-- Parameters: older than, in ms, injected time.
-- Index: none; reads the subscriptions.
SELECT kind, topic, group_name FROM {schema}.clean_subscriptions($1, $2)
