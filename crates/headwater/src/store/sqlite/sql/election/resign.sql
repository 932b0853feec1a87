-- Purpose:    A worker gives up its term.
-- Parameters: ?1 worker
-- Index:      the primary key: one row
DELETE FROM headwater_election
WHERE worker = ?1
