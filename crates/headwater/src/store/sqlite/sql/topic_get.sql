-- name: topic_get
-- Purpose:    A topic by its name.
-- Parameters: ?1 name
-- Index:      the unique index on name
SELECT topic_id, name, settings
FROM headwater_topic
WHERE name = ?1
