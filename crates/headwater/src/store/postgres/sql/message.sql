-- name: groups
-- Purpose: the subscriptions of a topic that are not cancelled, with their lanes.
-- Parameters: topic id.
-- Index: subscription_group.
SELECT subscription_id, group_name, lanes FROM {schema}.subscription
WHERE topic_id = $1 AND state <> 'cancelled' ORDER BY group_name

-- name: states
-- Purpose: the state of an offset in subscriptions: its cursor, the outstanding range that contains it, its dead letter.
-- Parameters: offset, subscription ids, the lane of the message in each (null where not ordered), injected time.
-- Index: cursor_pkey, outstanding_due, dead_letter_subscription: for people only.
SELECT u.i, c.next_offset, o.token, o.first_offset, o.last_offset, o.lane, o.owner, o.attempts, o.last_error, o.key, o.suspect, o.parked,
       CASE WHEN isfinite(o.due_at) THEN o.due_at END AS due_at,
       o.due_at <= coalesce($4::timestamptz, clock_timestamp()) AS is_over,
       (SELECT d.dead_letter_id FROM {schema}.dead_letter d WHERE d.subscription_id = u.id AND d.message_offset = $1
        ORDER BY d.buried_at DESC LIMIT 1) AS dead_letter_id
FROM unnest($2::integer[], $3::integer[]) WITH ORDINALITY AS u (id, lane, i)
JOIN {schema}.cursor c ON c.subscription_id = u.id AND c.lane = coalesce(u.lane, 0)
LEFT JOIN {schema}.outstanding o ON o.subscription_id = u.id AND o.lane IS NOT DISTINCT FROM u.lane
    AND $1 BETWEEN o.first_offset AND o.last_offset
ORDER BY u.i
