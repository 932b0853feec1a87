-- name: acks
-- Purpose: who acked ranges that hold an offset, oldest first, and the message's key and id if it is stored: of an ordered
-- subscription only the ack of the message's own lane is its ack.
-- Parameters: topic id, offset, the most offsets a range can have.
-- Index: ack_log_offsets, message primary key.
SELECT a.group_name, a.first_offset, a.last_offset, a.owner, a.acked_at, a.lane, a.lanes, m.key, m.message_id
FROM {schema}.ack_log a
LEFT JOIN {schema}.messages($1, $2, $2) m ON true
WHERE a.topic_id = $1 AND a.last_offset >= $2 AND a.last_offset < $2 + $3 AND a.first_offset <= $2
ORDER BY a.acked_at, a.first_offset, a.group_name

-- name: list
-- Purpose: what was done by operators, newest first.
-- Parameters: before this one, at most.
-- Index: audit_pkey.
SELECT audit_id, acted_at, actor, act, topic, group_name, detail::text AS detail
FROM {schema}.audit WHERE audit_id < $1 ORDER BY audit_id DESC LIMIT $2
