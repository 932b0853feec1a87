-- name: state
-- Purpose: pause, resume or cancel a subscription; tells its state, and whether this changed it.
-- Parameters: topic, group, act, the states it may start from, the state it leads to, actor, injected time.
-- Index: topic_name_key, subscription_group, subscription_cancelled.
SELECT topic_id, state, changed FROM {schema}.set_state($1, $2, $3, $4, $5, $6, $7)
