-- name: heartbeat
-- Purpose: say that an owner is alive, and end the leases of owners that fell silent; one row for each that held any.
-- Parameters: owner, for how many ms an owner may be silent, injected time.
-- Index: owner_pkey, owner_seen; a scan of the outstanding ranges for each owner that is dead.
SELECT dead_owner, leases, topic_ids FROM {schema}.heartbeat($1, $2, $3::timestamptz)
