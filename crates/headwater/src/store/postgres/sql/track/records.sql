-- Purpose: what is recorded about the messages of a range.
-- Parameters: topic, first offset, last offset, records at most, injected time.
-- Index: message primary key, record_pkey.
SELECT message_offset, required, completed, completed_at FROM {schema}.records($1, $2, $3, $4, $5::timestamptz)
