-- name: seek
-- Purpose: move a subscription's cursor, or tell what that would do.
-- Parameters: topic, group, start (as for subscribe), its number, its time, whether only to tell, actor, injected time.
-- Index: subscription_group, cursor_pkey, outstanding_due, message primary key.
SELECT topic_id, from_offset, to_offset, replayed, skipped, leases_lost FROM {schema}.seek($1, $2, $3, $4, $5, $6, $7, $8)
