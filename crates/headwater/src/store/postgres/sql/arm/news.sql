-- Purpose: which of these topics have offsets beyond their head: somebody published, or is about to commit.
-- Parameters: topic ids.
-- Index: topic_pkey, head_pkey.
SELECT h.topic_id FROM {schema}.head h WHERE h.topic_id = ANY ($1) AND {schema}.last_taken(h.topic_id) > h.head
