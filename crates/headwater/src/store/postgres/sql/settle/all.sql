-- Purpose: ack whole leases; returns the tokens that were held.
-- Parameters: tokens, durable, injected time.
-- Index: outstanding_pkey (token, first_offset).
SELECT settle_all AS token FROM {schema}.settle_all($1, $2, $3)
