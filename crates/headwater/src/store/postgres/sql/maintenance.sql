-- name: advance
-- Purpose: advance one topic's head; how far it is afterwards, late rows handed out, gaps closed.
-- Parameters: topic id, rows at most, gaps at most.
-- Index: head_pkey, message primary key.
SELECT (SELECT h.head FROM {schema}.head h WHERE h.topic_id = $1) AS head, a.skipped, a.late, a.closed
FROM {schema}.advance(ARRAY[$1::integer], $2, $3) a

-- name: new_messages
-- Purpose: which topics' heads have something to do; of at most so many topics, because each last offset read is a lock.
-- Parameters: topics above this id, at most.
-- Index: topic_pkey, head_pkey.
SELECT l.topic_id, h.gaps_until > 0 OR h.head <> l.last_taken AS news
FROM {schema}.last_taken_of(ARRAY(SELECT t.topic_id FROM {schema}.topic t WHERE t.topic_id > $1 ORDER BY t.topic_id LIMIT $2)) l
JOIN {schema}.head h ON h.topic_id = l.topic_id ORDER BY l.topic_id

-- name: probe
-- Purpose: a small piece of work as applications do them: a read, and a commit that waits for the log to be flushed. The
--   commit is of an empty logical message: it needs no row, so it leaves none dead. Decoding plug-ins do not send them
--   unless asked to.
-- Parameters: none.
-- Index: topic_pkey.
SELECT (SELECT t.topic_id FROM {schema}.topic t ORDER BY t.topic_id LIMIT 1) IS NULL,
       pg_catalog.pg_logical_emit_message(true, 'headwater probe', '')
