-- Purpose:    Forgets processes that have been silent since a time; what they did is kept in one sum.
-- Parameters: ?1 since_ms
-- Index:      a scan: as many rows as processes
DELETE FROM headwater_activity
WHERE told_at_ms <= ?1 AND owner <> ''
