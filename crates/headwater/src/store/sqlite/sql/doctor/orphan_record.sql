-- Purpose:    Records of messages that are not stored, or beyond what is recorded.
-- Parameters: none
-- Index:      a scan of the records; the primary keys
SELECT record.row_key >> 43, record.row_key & 8796093022207
FROM headwater_record AS record
LEFT JOIN headwater_topic AS topic ON topic.topic_id = record.row_key >> 43
WHERE topic.topic_id IS NULL
    OR record.row_key & 8796093022207 > topic.tracked_until
    OR NOT EXISTS (SELECT 1 FROM headwater_message AS message WHERE message.row_key = record.row_key)
