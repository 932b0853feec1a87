-- Purpose: remove messages of a topic that retention allows; who missed some of them.
-- Parameters: topic id, messages at most, injected time.
-- Index: primary key of the topic's table, record_pkey, mark_pkey, age_pkey.
SELECT topic, removed, missed_groups, missed, missed_first, missed_last, more FROM {schema}.clean($1, $2, $3::timestamptz)
