-- name: elect
-- Purpose:    Elects a worker, or confirms it; nothing changes while another worker's term lasts. A term that ends later than one
--             that begins now was stored while the clock was ahead, and is ignored.
-- Parameters: ?1 worker, ?2 until_ms, ?3 now_ms
-- Index:      the primary key
INSERT INTO headwater_election (one, worker, until_ms)
VALUES (1, ?1, ?2)
ON CONFLICT (one) DO UPDATE SET worker = excluded.worker, until_ms = excluded.until_ms
WHERE headwater_election.worker = excluded.worker OR headwater_election.until_ms <= ?3
    OR headwater_election.until_ms > excluded.until_ms

-- name: resign
-- Purpose:    Ends the term of a worker.
-- Parameters: ?1 worker
-- Index:      the primary key: one row
DELETE FROM headwater_election
WHERE worker = ?1
