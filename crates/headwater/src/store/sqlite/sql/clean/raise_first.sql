-- Purpose:    Moves the first offset of a topic up to its lowest stored message, or past its head.
-- Parameters: ?1 topic_id, ?2 row_key of the first offset, ?3 row_key to, ?4 messages removed
-- Index:      the primary keys
UPDATE headwater_topic
SET first_offset = coalesce((
        SELECT min(message.row_key) & 8796093022207 FROM headwater_message AS message
        WHERE message.row_key BETWEEN ?2 AND ?3
    ), last_offset + 1),
    removed = removed + ?4
WHERE topic_id = ?1
RETURNING first_offset
