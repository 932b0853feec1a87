-- name: force_complete
-- Purpose: give up for dead subscriptions what is done for all others and old; one row for each that had some.
-- Parameters: topic, age in ms, whether only to tell, actor, injected time.
-- Index: cursor_pkey, outstanding_due, message primary key.
SELECT group_name, messages, until FROM {schema}.force_complete($1, $2, $3, $4, $5)
