-- Purpose: ask for a notification, to learn whether LISTEN reaches us (a pooler may be in between).
-- Parameters: channel, payload.
-- Index: none.
SELECT pg_notify($1, $2)
