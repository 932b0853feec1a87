-- Purpose: create a topic, or find the one of that name.
-- Parameters: name, semantics, lease ms, max attempts, backoff initial ms, backoff max ms, ordering, lanes, payload
-- bytes max, dedup window ms, gap patience ms, injected time.
-- Index: topic_name_key.
SELECT {schema}.create_topic($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS topic_id
