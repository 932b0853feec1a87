-- Purpose: how many lanes a subscription has.
-- Parameters: subscription id.
-- Index: subscription_pkey.
SELECT lanes FROM {schema}.subscription WHERE subscription_id = $1
