-- Purpose: which topics' heads have something to do; of at most so many topics, because each last offset read is a lock.
-- Parameters: topics above this id, at most.
-- Index: topic_pkey, head_pkey.
SELECT t.topic_id, h.gaps_until > 0 OR h.head <> {schema}.last_taken(t.topic_id) AS news
FROM {schema}.topic t JOIN {schema}.head h ON h.topic_id = t.topic_id
WHERE t.topic_id > $1 ORDER BY t.topic_id LIMIT $2
