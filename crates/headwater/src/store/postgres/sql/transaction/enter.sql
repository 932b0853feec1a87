-- Purpose: enter a message into the inbox of a handler; false if it is there already.
-- Parameters: handler, message id, injected time.
-- Index: inbox_pkey (handler, message_id).
SELECT {schema}.enter($1, $2, $3::timestamptz) AS entered
