-- Purpose: one step over the records of a topic.
-- Parameters: topic id, offsets at most, injected time.
-- Index: record_pkey, message primary key, outstanding_due.
SELECT recorded, changed, completed, removed, more FROM {schema}.track($1, $2, $3::timestamptz)
