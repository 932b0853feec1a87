-- name: claimable
-- Purpose: the subscriptions for which a claim may find something.
-- Parameters: subscription ids, injected time.
-- Index: subscription_pkey, head_pkey, cursor_pkey; those of the outstanding ranges and of the schedule.
SELECT subscription_id FROM {schema}.claimable($1, $2::timestamptz)

-- name: news
-- Purpose: the last offset taken of each of these topics: when it moves, somebody published or is about to commit.
-- Parameters: topic ids.
-- Index: topic_pkey.
SELECT t.topic_id, {schema}.last_taken(t.topic_id) AS last_taken FROM {schema}.topic t WHERE t.topic_id = ANY ($1)

-- name: probe
-- Purpose: ask for a notification, to learn whether LISTEN reaches us (a pooler may be in between).
-- Parameters: channel, payload.
-- Index: none.
SELECT pg_notify($1, $2)

-- name: raise_flag
-- Purpose: say that this process waits for topics, so that publishers notify.
-- Parameters: topic ids, waiter id, for how many ms.
-- Index: waiter_pkey.
SELECT {schema}.raise_flag($1, $2, $3)
