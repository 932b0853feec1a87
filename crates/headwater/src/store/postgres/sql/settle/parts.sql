-- Purpose: settle parts of one lease, all or nothing; null if the lease is lost.
-- Parameters: token, subscription id, owner, first offsets, last offsets, outcomes, delays in ms, errors, keys, durable,
-- injected time, expected time.
-- Index: outstanding_pkey (token, first_offset).
SELECT {schema}.settle_parts($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::timestamptz, $12) AS topic_id
