-- name: new_messages
-- Purpose: the last offset taken of each of these topics: when it moves, a transaction has published or is about to commit.
-- Parameters: topic ids.
-- Index: topic_pkey.
SELECT t.topic_id, {schema}.last_taken(t.topic_id) AS last_taken FROM {schema}.topic t WHERE t.topic_id = ANY ($1)

-- name: probe
-- Purpose: send a notification, to find out whether LISTEN works (a pooler may be in between).
-- Parameters: channel, payload.
-- Index: none.
SELECT pg_notify($1, $2)
