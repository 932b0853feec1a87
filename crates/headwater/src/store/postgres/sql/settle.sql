-- name: all
-- Purpose: ack whole leases; returns the tokens that were held, and the topic of those whose lane became free.
-- Parameters: tokens, durable, injected time, subscription ids, owners.
-- Index: outstanding_pkey (token, first_offset); topic_ack_log, once.
WITH locked AS MATERIALIZED (
    -- In the order of locks (schema/functions/locks.sql); a DELETE alone takes rows in the order in which its plan finds them.
    SELECT l.token, l.first_offset FROM {schema}.outstanding l
    -- The index finds the tokens; a hash tells whether each belongs to its group and owner. As a join, which IS TRUE
    -- rules out, here and below, it is planned as a scan of the table and all its dead rows.
    WHERE l.token = ANY ($1)
      AND ((l.token, l.subscription_id, l.owner) IN (SELECT * FROM unnest($1::bigint[], $4::integer[], $5::text[]))) IS TRUE
      AND l.due_at > coalesce($3, clock_timestamp())
      -- Evaluated once: an ack lost in a power cut only means a redelivery.
      AND (SELECT $2 OR set_config('synchronous_commit', 'off', true) IS NOT NULL)
    ORDER BY l.subscription_id, l.lane, l.first_offset FOR UPDATE
)
DELETE FROM {schema}.outstanding o
WHERE o.token = ANY ($1) AND ((o.token, o.first_offset) IN (SELECT k.token, k.first_offset FROM locked k)) IS TRUE
RETURNING o.token,
    CASE WHEN o.lane IS NOT NULL
         THEN (SELECT s.topic_id FROM {schema}.subscription s WHERE s.subscription_id = o.subscription_id) END AS freed_topic_id,
    -- Evaluated once as well: where no topic keeps an ack log, none is called for.
    CASE WHEN (SELECT EXISTS (SELECT FROM {schema}.topic t WHERE t.ack_log))
         THEN {schema}.log_ack(o.subscription_id, o.first_offset, o.last_offset, o.lane, o.owner, $3::timestamptz) END AS logged
