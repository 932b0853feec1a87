-- Purpose: create partitions of a dedicated topic ahead, drop those behind.
-- Parameters: topic id, how long to wait for a lock in ms, injected time.
-- Index: partition_pkey, primary keys of the partitions.
SELECT topic, created, dropped, removed, ahead, locked, missed_groups, missed, missed_first, missed_last
FROM {schema}.keep_partitions($1, $2, $3::timestamptz)
