-- Purpose:    Messages without a record where they should have one.
-- Parameters: none
-- Index:      the primary keys, from the first message of the topic to the last recorded one
SELECT topic.topic_id, message.row_key & 8796093022207
FROM headwater_topic AS topic
JOIN headwater_message AS message
    ON message.row_key BETWEEN (topic.topic_id << 43) | topic.first_offset AND (topic.topic_id << 43) | topic.tracked_until
WHERE topic.tracking = 'reference_counting' AND topic.first_offset <= topic.tracked_until
    AND NOT EXISTS (SELECT 1 FROM headwater_record AS record WHERE record.row_key = message.row_key)
