-- Purpose:    Whether any topic keeps an ack log.
-- Parameters: none
-- Index:      headwater_topic_ack_log, which is empty if none does
SELECT EXISTS (
    SELECT 1 FROM headwater_topic INDEXED BY headwater_topic_ack_log
    WHERE ack_log = 1
)
