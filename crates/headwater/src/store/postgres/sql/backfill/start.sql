-- Purpose: start a backfill by hand.
-- Parameters: topic, group, messages at most, messages a second at most, actor, injected time.
-- Index: subscription_group, backfill_pkey.
SELECT {schema}.start_backfill($1, $2, $3, $4, $5, $6::timestamptz) AS subscription_id
