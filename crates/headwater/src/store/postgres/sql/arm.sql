-- name: new_messages
-- Purpose: the last offset taken of each of these topics: when it moves, a transaction has published or is about to commit. Of topic 0,
-- the outbox, the newest entry.
-- Parameters: topic ids.
-- Index: topic_pkey, outbox_entry_pkey.
SELECT l.topic_id, l.last_taken FROM {schema}.last_taken_of($1) l
UNION ALL
SELECT 0, (SELECT coalesce(max(e.id), 0) FROM {schema}.outbox_entry e) WHERE 0 = ANY ($1)

-- name: probe
-- Purpose: send a notification, to find out whether LISTEN works (a pooler may be in between).
-- Parameters: channel, payload.
-- Index: none.
SELECT pg_notify($1, $2)
