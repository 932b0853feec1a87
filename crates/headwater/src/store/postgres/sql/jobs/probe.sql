-- Purpose: a small read as applications do them.
-- Parameters: none.
-- Index: topic_pkey.
SELECT t.topic_id FROM {schema}.topic t ORDER BY t.topic_id LIMIT 1
