-- Purpose: advance one topic's head; how far it is afterwards.
-- Parameters: topic id, rows at most, gaps at most.
-- Index: head_pkey, message primary key.
SELECT (SELECT h.head FROM {schema}.head h WHERE h.topic_id = $1) AS head, a.skipped
FROM {schema}.advance(ARRAY[$1::integer], $2, $3) a
