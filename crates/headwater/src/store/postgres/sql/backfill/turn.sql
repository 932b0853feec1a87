-- Purpose: cancel a backfill, or let it go on.
-- Parameters: topic, group, whether to resume, actor, injected time.
-- Index: subscription_group, backfill_pkey.
SELECT {schema}.turn_backfill($1, $2, $3, $4, $5::timestamptz) AS subscription_id
