-- name: detect
-- Purpose: declare dead what is active and silent; who died, is suspected, or near its timeout.
-- Parameters: injected time.
-- Index: none; reads the subscriptions.
SELECT kind, topic, group_name FROM {schema}.detect_dead($1::timestamptz)
