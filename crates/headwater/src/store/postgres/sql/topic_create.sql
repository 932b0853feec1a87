-- name: topic_create
-- Purpose: create a topic, or find the one of that name.
-- Parameters: name, settings as JSON text (the columns of topic by name), injected time.
-- Index: topic_name_key.
SELECT {schema}.create_topic($1, $2::text::jsonb, $3) AS topic_id
