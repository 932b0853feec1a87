-- name: resurrect
-- Purpose: bring a dead subscription back; tells the state found, whether this did it, where it goes on and what it missed.
-- Parameters: topic, group, messages behind the head at most (null for any), actor, injected time.
-- Index: topic_name_key, subscription_group, cursor_pkey.
SELECT topic_id, state, resurrected, next_offset, missed, missed_first, missed_last FROM {schema}.resurrect($1, $2, $3, $4, $5)
