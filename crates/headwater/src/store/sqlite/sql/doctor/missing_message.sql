-- Purpose:    Topics with fewer messages than were published and not removed.
-- Parameters: none
-- Index:      the primary key of the log, all of it
SELECT topic_id, expected, stored
FROM (
    SELECT topic.topic_id, topic.last_offset - topic.removed AS expected,
        (
            SELECT count(*) FROM headwater_message AS message
            WHERE message.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207
        ) AS stored
    FROM headwater_topic AS topic
)
WHERE stored < expected
