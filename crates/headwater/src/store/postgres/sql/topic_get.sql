-- name: topic_get
-- Purpose: one topic by name.
-- Parameters: name.
-- Index: topic_name_key.
SELECT t.topic_id, t.name, t.settings FROM {schema}.topic t WHERE t.name = $1
