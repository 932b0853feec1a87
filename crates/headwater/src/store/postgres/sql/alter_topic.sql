-- name: alter_topic
-- Purpose: change a topic's settings.
-- Parameters: name, settings as JSON, actor, injected time.
-- Index: topic_name_key.
SELECT {schema}.alter_topic($1, $2::jsonb, $3, $4) AS topic_id
