-- Purpose:    Topics with a message stored above their last offset: the next publish would collide with it.
-- Parameters: none
-- Index:      the primary key of the log, at each topic's end
SELECT topic.topic_id, topic.last_offset,
    (
        SELECT message.row_key & 8796093022207 FROM headwater_message AS message
        WHERE message.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207
        ORDER BY message.row_key DESC
        LIMIT 1
    ) AS highest
FROM headwater_topic AS topic
WHERE highest > topic.last_offset
