-- Purpose:    Keeps whether publishing creates topics.
-- Parameters: ?1 1 or 0
-- Index:      the primary key
UPDATE headwater_meta SET value = ?1
WHERE key = 'auto_create'
