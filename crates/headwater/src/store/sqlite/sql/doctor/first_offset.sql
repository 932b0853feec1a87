-- Purpose:    Topics whose first offset is above a stored message, or beyond the end.
-- Parameters: none
-- Index:      the first entry of the log of each topic
SELECT topic_id, first_offset, lowest, last_offset
FROM (
    SELECT topic.topic_id, topic.first_offset, topic.last_offset,
        (
            SELECT min(message.row_key) & 8796093022207 FROM headwater_message AS message
            WHERE message.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207
        ) AS lowest
    FROM headwater_topic AS topic
)
WHERE first_offset > lowest OR first_offset > last_offset + 1 OR first_offset < 1
