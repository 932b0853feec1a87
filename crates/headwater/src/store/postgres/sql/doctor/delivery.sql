-- Purpose: check every invariant; one row for each thing that is off.
-- Parameters: injected time.
-- Index: none in particular; it reads the small tables whole and the log by its ends.
WITH now AS (SELECT coalesce($1::timestamptz, clock_timestamp()) AS at)
SELECT 'outstanding_overlap' AS finding,
       format('subscription %s lane %s: offsets %s..=%s are outstanding twice', o.subscription_id, o.lane, o.first_offset,
              least(o.before, o.last_offset)) AS problem
FROM (SELECT x.subscription_id, x.lane, x.first_offset, x.last_offset,
             -- How far those that begin below reach.
             max(x.last_offset) OVER (PARTITION BY x.subscription_id, x.lane ORDER BY x.first_offset, x.token
                                      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
      FROM {schema}.outstanding x) o
WHERE o.before >= o.first_offset
UNION ALL
SELECT 'outstanding_beyond_cursor',
       format('subscription %s: offsets %s..=%s are outstanding but the cursor is at %s', o.subscription_id,
              o.first_offset, o.last_offset, c.next_offset)
FROM {schema}.outstanding o
JOIN {schema}.cursor c ON c.subscription_id = o.subscription_id AND c.lane = coalesce(o.lane, 0)
WHERE o.last_offset >= c.next_offset
UNION ALL
SELECT 'outstanding_orphan', format('subscription %s does not exist but has outstanding offsets %s..=%s',
                                    o.subscription_id, o.first_offset, o.last_offset)
FROM {schema}.outstanding o
WHERE NOT EXISTS (SELECT FROM {schema}.subscription s WHERE s.subscription_id = o.subscription_id)
UNION ALL
SELECT 'epoch_changed', format('epoch %s began at %s by a %s: what was published and not replicated or dumped before is gone',
                               h.epoch, h.began_at, h.cause)
FROM {schema}.epoch_history h, now
WHERE h.cause IN ('failover', 'restore') AND h.began_at > now.at - interval '1 day'
UNION ALL
SELECT 'lease_too_long', format('subscription %s token %s: leased until %s', o.subscription_id, o.token, o.due_at)
FROM {schema}.outstanding o, now
WHERE o.owner IS NOT NULL AND o.due_at < 'infinity' AND o.due_at > now.at + interval '367 days'
UNION ALL
SELECT 'cursor_missing', format('subscription %s has %s cursors, expected %s', s.subscription_id,
                                (SELECT count(*) FROM {schema}.cursor c WHERE c.subscription_id = s.subscription_id),
                                greatest(s.lanes, 1))
FROM {schema}.subscription s
WHERE (SELECT count(*) FROM {schema}.cursor c WHERE c.subscription_id = s.subscription_id) <> greatest(s.lanes, 1)
UNION ALL
SELECT 'cursor_beyond_head', format('subscription %s lane %s: cursor %s is beyond head %s', c.subscription_id, c.lane,
                                    c.next_offset, h.head)
FROM {schema}.cursor c
JOIN {schema}.head h ON h.topic_id = c.topic_id
JOIN {schema}.subscription s ON s.subscription_id = c.subscription_id
-- A group may start among offsets that are taken and not there yet.
WHERE c.next_offset > h.head + 1 AND (c.next_offset > s.start_offset OR c.next_offset > {schema}.last_taken(c.topic_id) + 1)
UNION ALL
SELECT 'head_missing', format('topic %s has no head or no offsets', t.name)
FROM {schema}.topic t
WHERE t.offsets IS NULL OR NOT EXISTS (SELECT FROM {schema}.head h WHERE h.topic_id = t.topic_id)
UNION ALL
SELECT 'head_beyond_offsets', format('topic %s: head %s is beyond the last offset taken, %s', t.name, h.head,
                                     {schema}.last_taken(t.topic_id))
FROM {schema}.topic t JOIN {schema}.head h ON h.topic_id = t.topic_id
WHERE h.head > {schema}.last_taken(t.topic_id)
UNION ALL
SELECT 'offsets_behind_log', format('topic %s: the log has offset %s, the sequence is at %s', t.name, m.top,
                                    {schema}.last_taken(t.topic_id))
FROM {schema}.topic t
JOIN LATERAL (SELECT max(x.message_offset) AS top FROM {schema}.message x WHERE x.topic_id = t.topic_id) m ON true
WHERE m.top > {schema}.last_taken(t.topic_id)
UNION ALL
SELECT 'gap_beyond_head', format('topic %s: gap %s..=%s is beyond head %s', g.topic_id, g.first_offset, g.last_offset, h.head)
FROM {schema}.gap g JOIN {schema}.head h ON h.topic_id = g.topic_id
WHERE g.last_offset > h.head OR g.last_offset > h.gaps_until
UNION ALL
SELECT 'gaps_many', format('topic %s: %s gaps are noted; a publishing transaction has been open since before %s', g.topic_id,
                           count(*), min(g.noted_at))
FROM {schema}.gap g GROUP BY g.topic_id HAVING count(*) >= 1000
