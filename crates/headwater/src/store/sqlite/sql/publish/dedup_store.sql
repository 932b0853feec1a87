-- Purpose:    Remembers a dedup key; one whose window is over is taken anew.
-- Parameters: ?1 topic_id, ?2 dedup_key, ?3 message_id, ?4 message_offset or NULL, ?5 expires_at_ms
-- Index:      the primary key
INSERT OR REPLACE INTO headwater_dedup (topic_id, dedup_key, message_id, message_offset, expires_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5)
