-- Purpose: hand dead letters to their subscription again; how many were there and still in the log.
-- Parameters: subscription id, letters, their lanes (null where not ordered).
-- Index: dead_letter_pkey, cursor_pkey, outstanding_due.
SELECT redriven, topic_id FROM {schema}.redrive($1, $2, $3)
