-- Purpose: give a group a delivery policy of its own; returns its state.
-- Parameters: topic, group, lease in ms, attempts, first and longest retry delay in ms (null for the topic's), actor, injected
-- time.
-- Index: subscription_group.
SELECT {schema}.set_policy($1, $2, $3, $4, $5, $6, $7, $8) AS state
