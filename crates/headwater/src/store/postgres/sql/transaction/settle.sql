-- Purpose: settle one lease in the transaction its handlers wrote in; null if the lease is lost.
-- Parameters: the transaction's mark, token, subscription id, owner, first offsets (null: ack all), last offsets,
-- outcomes, delays in ms, errors, keys, injected time.
-- Index: outstanding_pkey (token, first_offset).
SELECT {schema}.settle_inside($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::timestamptz) AS topic_id
