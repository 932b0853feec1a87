-- name: changed
-- Purpose:    Notes that an older copy was restored into the open file, for the doctor.
-- Parameters: ?1 now_ms, as text
-- Index:      the primary key
INSERT INTO headwater_meta (key, value)
VALUES ('epoch_changed_at_ms', ?1)
ON CONFLICT (key) DO UPDATE SET value = excluded.value

-- name: message_id
-- Purpose:    The id of one message: tells one history of the log from another.
-- Parameters: ?1 row_key
-- Index:      the primary key of the log
SELECT message_id
FROM headwater_message
WHERE row_key = ?1
