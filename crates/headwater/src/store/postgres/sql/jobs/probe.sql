-- Purpose: a small piece of work as applications do them: a read, and a commit that waits for the log to be flushed. The
--   commit is of an empty logical message: it needs no row, so it leaves none dead. Decoding plug-ins do not send them
--   unless asked to.
-- Parameters: none.
-- Index: topic_pkey.
SELECT (SELECT t.topic_id FROM {schema}.topic t ORDER BY t.topic_id LIMIT 1) IS NULL,
       pg_catalog.pg_logical_emit_message(true, 'headwater probe', '')
