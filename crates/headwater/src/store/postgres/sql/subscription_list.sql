-- Purpose: the subscriptions of a topic and how far each is.
-- Parameters: topic id, injected time.
-- Index: subscription_topic_id_group_name_key, outstanding_due.
SELECT s.subscription_id, s.topic_id, s.group_name, s.reassigned, c.next_offset,
       least(c.next_offset, o.lowest) - 1 AS floor, coalesce(o.leased, 0) AS leased, coalesce(o.waiting, 0) AS waiting,
       (SELECT count(*) FROM {schema}.dead_letter d WHERE d.subscription_id = s.subscription_id) AS dead_letters
FROM {schema}.subscription s
JOIN (SELECT subscription_id, min(next_offset) AS next_offset FROM {schema}.cursor GROUP BY subscription_id) c
    ON c.subscription_id = s.subscription_id
LEFT JOIN LATERAL (
    SELECT min(q.first_offset) AS lowest,
           count(*) FILTER (WHERE q.owner IS NOT NULL AND q.due_at > coalesce($2, clock_timestamp())) AS leased,
           count(*) FILTER (WHERE q.owner IS NULL OR q.due_at <= coalesce($2, clock_timestamp())) AS waiting
    FROM {schema}.outstanding q WHERE q.subscription_id = s.subscription_id
) o ON true
WHERE s.topic_id = $1
ORDER BY s.group_name
