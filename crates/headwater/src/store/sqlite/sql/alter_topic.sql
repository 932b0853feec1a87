-- name: settings
-- Purpose:    The settings of a topic as they are stored.
-- Parameters: ?1 topic_id
-- Index:      the primary key
SELECT settings
FROM headwater_topic
WHERE topic_id = ?1

-- name: store
-- Purpose:    Changes the settings of a topic.
-- Parameters: ?1 topic_id, ?2 settings as JSON
-- Index:      the primary key
UPDATE headwater_topic
SET settings = ?2
WHERE topic_id = ?1
