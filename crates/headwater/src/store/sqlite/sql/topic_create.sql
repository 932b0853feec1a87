-- name: topic_create
-- Purpose:    Creates a topic.
-- Parameters: ?1 name, ?2 now_ms, ?3 settings as JSON
-- Index:      the unique index on name, to refuse a second one
INSERT INTO headwater_topic (name, created_at_ms, settings)
VALUES (?1, ?2, ?3)
