-- Purpose: advance one topic's head; how far it is afterwards, late rows handed out, gaps closed.
-- Parameters: topic id, rows at most, gaps at most.
-- Index: head_pkey, message primary key.
SELECT (SELECT h.head FROM {schema}.head h WHERE h.topic_id = $1) AS head, a.skipped, a.late, a.closed
FROM {schema}.advance(ARRAY[$1::integer], $2, $3) a
