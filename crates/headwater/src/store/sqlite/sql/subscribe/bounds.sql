-- Purpose:    The first offset that may be stored, the lowest that is (NULL if none), and the head.
-- Parameters: ?1 topic_id
-- Index:      the primary key of the log, from the topic's first possible key
SELECT topic.first_offset,
    (
        SELECT message.row_key & 8796093022207 FROM headwater_message AS message
        WHERE message.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207
        ORDER BY message.row_key
        LIMIT 1
    ),
    topic.last_offset
FROM headwater_topic AS topic
WHERE topic.topic_id = ?1
