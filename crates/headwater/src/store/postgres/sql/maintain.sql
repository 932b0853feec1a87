-- name: advance
-- Purpose: advance one topic's head; how far it is afterwards, late rows handed out, gaps closed.
-- Parameters: topic id, rows at most, gaps at most.
-- Index: head_pkey, message primary key.
SELECT (SELECT h.head FROM {schema}.head h WHERE h.topic_id = $1) AS head, a.skipped, a.late, a.closed
FROM {schema}.advance(ARRAY[$1::integer], $2, $3) a

-- name: forget_inbox
-- Purpose: forget inbox entries past their retention.
-- Parameters: retention in ms, at most, injected time.
-- Index: inbox_handled.
SELECT {schema}.forget_inbox($1::bigint, $2, $3::timestamptz) AS forgotten

-- name: news
-- Purpose: which topics' heads have something to do; of at most so many topics, because each last offset read is a lock.
-- Parameters: topics above this id, at most.
-- Index: topic_pkey, head_pkey.
SELECT t.topic_id, h.gaps_until > 0 OR h.head <> {schema}.last_taken(t.topic_id) AS news
FROM {schema}.topic t JOIN {schema}.head h ON h.topic_id = t.topic_id
WHERE t.topic_id > $1 ORDER BY t.topic_id LIMIT $2

-- name: round
-- Purpose: one round of upkeep over all topics, their heads apart.
-- Parameters: promote at most, injected time.
-- Index: schedule_due, dedup_expiry.
SELECT promoted, dedup_forgotten FROM {schema}.maintain($1, $2::timestamptz)
