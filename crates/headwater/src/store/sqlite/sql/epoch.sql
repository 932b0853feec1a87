-- name: changed
-- Purpose:    Records that an older copy was restored into the open file, for the doctor.
-- Parameters: ?1 now_ms, as text
-- Index:      the primary key
INSERT INTO headwater_meta (key, value)
VALUES ('epoch_changed_at_ms', ?1)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
