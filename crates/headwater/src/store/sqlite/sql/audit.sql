-- name: acks
-- Purpose:    The entries of the ack log that contain an offset, oldest first.
-- Parameters: ?1 topic_id, ?2 offset
-- Index:      headwater_ack_log_offsets, from the offset on
SELECT group_name, first_offset, last_offset, owner, acked_at_ms, lane, lanes
FROM headwater_ack_log
WHERE topic_id = ?1 AND last_offset >= ?2 AND first_offset <= ?2
ORDER BY ack_key

-- name: list
-- Purpose:    The audit entries, newest first.
-- Parameters: ?1 before this one, ?2 at most
-- Index:      the primary key, from there down
SELECT acted_at_ms, actor, act, topic, group_name, detail, audit_key
FROM headwater_audit
WHERE audit_key < ?1
ORDER BY audit_key DESC
LIMIT ?2

-- name: note
-- Purpose:    Adds an audit entry.
-- Parameters: ?1 now_ms, ?2 actor, ?3 act, ?4 topic, ?5 group, ?6 detail
-- Index:      the primary key, at its end
INSERT INTO headwater_audit (acted_at_ms, actor, act, topic, group_name, detail)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
