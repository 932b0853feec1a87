-- name: records
-- Purpose: what is recorded about the messages of a range.
-- Parameters: topic, first offset, last offset, records at most, injected time.
-- Index: message primary key, record_pkey.
SELECT message_offset, required, completed, completed_at FROM {schema}.records($1, $2, $3, $4, $5::timestamptz)

-- name: step
-- Purpose: one step over the records of a topic.
-- Parameters: topic id, offsets at most, injected time.
-- Index: record_pkey, message primary key, outstanding_due.
SELECT recorded, changed, completed, removed, more FROM {schema}.track($1, $2, $3::timestamptz)
