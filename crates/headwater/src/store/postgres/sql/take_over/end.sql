-- Purpose: end the leases of an owner whose proof is gone; no row if it was seen alive since.
-- Parameters: owner, key of the proof, when the owner was last seen alive, injected time.
-- Index: owner_pkey, proof_pkey; a scan of the outstanding ranges.
SELECT leases, topic_ids FROM {schema}.take_over($1, $2, $3, $4::timestamptz)
