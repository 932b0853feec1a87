-- Purpose: the subscriptions for which a claim may find something.
-- Parameters: subscription ids, injected time.
-- Index: subscription_pkey, head_pkey, cursor_pkey; those of the outstanding ranges and of the schedule.
SELECT subscription_id FROM {schema}.claimable($1, $2::timestamptz)
