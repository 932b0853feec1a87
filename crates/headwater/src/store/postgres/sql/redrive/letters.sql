-- Purpose: hand dead letters to their subscription again; how many were there and still in the log.
-- Parameters: subscription id, letters, their lanes (null where not ordered), how many the steps before redrove, whether this
-- is the last step, actor, injected time.
-- Index: dead_letter_pkey, cursor_pkey, outstanding_due.
SELECT redriven, topic_id FROM {schema}.redrive($1, $2, $3, $4, $5, $6, $7::timestamptz)
