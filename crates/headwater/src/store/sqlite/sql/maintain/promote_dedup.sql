-- Purpose:    Gives a dedup key the offset its message got.
-- Parameters: ?1 topic_id, ?2 dedup_key, ?3 message_id, ?4 message_offset
-- Index:      the primary key
UPDATE headwater_dedup
SET message_offset = ?4
WHERE topic_id = ?1 AND dedup_key = ?2 AND message_id = ?3
