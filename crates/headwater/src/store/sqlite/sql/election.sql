-- name: elect
-- Purpose:    Elects a worker, or confirms it; nothing changes while another's term lasts. One that would outlast a term
--             that begins now is a clock's that was ahead.
-- Parameters: ?1 worker, ?2 until_ms, ?3 now_ms
-- Index:      the primary key
INSERT INTO headwater_election (one, worker, until_ms)
VALUES (1, ?1, ?2)
ON CONFLICT (one) DO UPDATE SET worker = excluded.worker, until_ms = excluded.until_ms
WHERE headwater_election.worker = excluded.worker OR headwater_election.until_ms <= ?3
    OR headwater_election.until_ms > excluded.until_ms

-- name: resign
-- Purpose:    A worker gives up its term.
-- Parameters: ?1 worker
-- Index:      the primary key: one row
DELETE FROM headwater_election
WHERE worker = ?1
