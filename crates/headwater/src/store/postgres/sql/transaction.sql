-- name: begin
-- Purpose: mark the transaction just begun, for as long as it lasts, and make its commit wait for the disk and for a
-- synchronous standby.
-- Parameters: the mark.
-- Index: none.
SELECT set_config('headwater.transaction', $1, true),
       CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
            THEN set_config('synchronous_commit', 'on', true) END

-- name: enter
-- Purpose: enter a message into the inbox of a handler; false if it is there already.
-- Parameters: handler, message id, injected time.
-- Index: inbox_pkey (handler, message_id).
SELECT {schema}.enter($1, $2, $3::timestamptz) AS entered

-- name: settle
-- Purpose: settle one lease in the transaction its handlers wrote in; null if the lease is lost.
-- Parameters: the transaction's mark, token, subscription id, owner, first offsets (null: ack all), last offsets,
-- outcomes, delays in ms, errors, keys, injected time.
-- Index: outstanding_pkey (token, first_offset).
SELECT {schema}.settle_inside($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::timestamptz) AS topic_id
