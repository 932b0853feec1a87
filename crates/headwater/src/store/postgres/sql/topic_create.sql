-- name: topic_create
-- Purpose: create a topic, or find the one of that name.
-- Parameters: name, settings as JSON, injected time.
-- Index: topic_name_key.
SELECT {schema}.create_topic($1, $2::jsonb, $3) AS topic_id
