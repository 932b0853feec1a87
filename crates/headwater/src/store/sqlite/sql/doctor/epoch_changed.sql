-- Purpose:    When an older copy was last restored into the open file, if that is not long ago.
-- Parameters: ?1 the earliest time that counts, in ms
-- Index:      the primary key
SELECT CAST(value AS INTEGER)
FROM headwater_meta
WHERE key = 'epoch_changed_at_ms' AND CAST(value AS INTEGER) > ?1
