-- Purpose:    Forgets who acked messages of a topic that are gone.
-- Parameters: ?1 topic_id, ?2 at most
-- Index:      headwater_ack_log_offsets
DELETE FROM headwater_ack_log
WHERE ack_key IN (
    SELECT log.ack_key FROM headwater_ack_log AS log
    WHERE log.topic_id = ?1
        AND log.last_offset < (SELECT topic.first_offset FROM headwater_topic AS topic WHERE topic.topic_id = ?1)
    LIMIT ?2
)
