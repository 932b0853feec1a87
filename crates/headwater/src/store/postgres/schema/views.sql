-- Views for operators, and one for the functions.

-- The progress of all subscriptions. Each row is computed from its own subscription: one costs the same beside ten thousand others.
CREATE OR REPLACE VIEW {schema}.current_progress AS
    SELECT s.topic_id, s.subscription_id, s.group_name, s.state, s.bit, s.required_from, s.start_offset, n.next_offset, h.held,
           h.held + int8multirange(int8range(n.next_offset, NULL)) AS pending, s.applied, {schema}.counts(s.state, t.semantics) AS counts
    FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
    -- Conservative for ordered subscriptions: a message is done only once it is done in every lane.
    CROSS JOIN LATERAL (SELECT min(c.next_offset) AS next_offset FROM {schema}.cursor c
                        WHERE c.subscription_id = s.subscription_id) n
    CROSS JOIN LATERAL (SELECT coalesce(range_agg(int8range(o.first_offset, o.last_offset, '[]')), '{}') AS held
                        FROM {schema}.outstanding o WHERE o.subscription_id = s.subscription_id) h
    WHERE n.next_offset IS NOT NULL;

-- The activity that owners reported, and when each was last seen serving the subscription.
CREATE OR REPLACE VIEW {schema}.activity_seen AS
    SELECT a.subscription_id, a.owner, a.processed, a.failed, a.filtered, a.rate, a.handling_mean_us, a.handling_p95_us,
           greatest(a.served_at, CASE WHEN a.serving THEN w.seen_at END) AS seen_at
    FROM {schema}.activity a LEFT JOIN {schema}.owner w ON w.owner = a.owner;

-- The last heartbeat of each subscription: a group is alive while an owner that serves it is. Null if there was none.
CREATE OR REPLACE VIEW {schema}.heard AS
    SELECT s.subscription_id, greatest(s.heartbeat_at, (SELECT max(a.seen_at) FROM {schema}.activity_seen a
                                                        WHERE a.subscription_id = s.subscription_id)) AS heard_at
    FROM {schema}.subscription s;

-- For plain SQL: the names of the groups that have not done a message. A message without a completion record is shown as its
-- record will be. Bits of deleted groups have no name any more.
CREATE OR REPLACE VIEW {schema}.message_status AS
SELECT t.name AS topic, m.message_offset, CASE WHEN d.completed_at IS NULL THEN 'PENDING' ELSE 'COMPLETED' END AS status,
       g.required_groups, g.completed_groups, g.waiting_for, d.completed_at, r.topic_id IS NOT NULL AS recorded
FROM {schema}.topic t
CROSS JOIN LATERAL (SELECT ARRAY(SELECT p FROM {schema}.progress_list(t.topic_id) p WHERE p.bit IS NOT NULL) AS places OFFSET 0) q
JOIN {schema}.message m ON m.topic_id = t.topic_id
LEFT JOIN {schema}.completion_record r ON r.topic_id = m.topic_id AND r.message_offset = m.message_offset
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(b.group_name) FILTER (WHERE b.required), '{}') AS required_groups,
           coalesce(array_agg(b.group_name) FILTER (WHERE b.completed), '{}') AS completed_groups,
           coalesce(array_agg(b.group_name) FILTER (WHERE b.required AND NOT b.completed), '{}') AS waiting_for
    FROM (SELECT p.group_name,
                 CASE WHEN r.topic_id IS NOT NULL THEN r.required & (1::bigint << p.bit) <> 0
                      ELSE p.counts
                           AND (p.required_from <= m.message_offset OR p.held @> m.message_offset) END AS required,
                 CASE WHEN r.topic_id IS NOT NULL THEN r.completed & (1::bigint << p.bit) <> 0
                      ELSE p.counts AND p.required_from <= m.message_offset
                           AND NOT p.pending @> m.message_offset END AS completed
          FROM unnest(q.places) p ORDER BY p.group_name) b
) g
CROSS JOIN LATERAL (SELECT CASE WHEN r.topic_id IS NOT NULL THEN r.completed_at
                                WHEN g.waiting_for = '{}' THEN now() END AS completed_at) d
WHERE t.tracking = 'reference_counting';
