-- name: acks
-- Purpose:    The entries of the ack log that contain an offset, oldest first.
-- Parameters: ?1 topic_id, ?2 offset
-- Index:      headwater_ack_log_offsets, from the offset on
SELECT group_name, first_offset, last_offset, owner, acked_at_ms, lane, lanes
FROM headwater_ack_log
WHERE topic_id = ?1 AND last_offset >= ?2 AND first_offset <= ?2
ORDER BY ack_key
