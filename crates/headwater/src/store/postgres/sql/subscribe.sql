-- name: get
-- Purpose: a group that is not cancelled, with its delivery policy; nulls take the topic's.
-- Parameters: topic id, group.
-- Index: subscription_group.
SELECT s.subscription_id, s.lanes, s.lease_ms, s.max_attempts, s.backoff_initial_ms, s.backoff_max_ms, s.heartbeat_interval_ms,
       s.heartbeat_timeout_ms
FROM {schema}.subscription s
WHERE s.topic_id = $1 AND s.group_name = $2 AND s.state <> 'cancelled'

-- name: lanes
-- Purpose: how many lanes a subscription has.
-- Parameters: subscription id.
-- Index: subscription_pkey.
SELECT lanes FROM {schema}.subscription WHERE subscription_id = $1

-- name: list
-- Purpose: subscriptions of a topic or of all topics, with the progress and health of each, by topic and group; of one group the newest
-- first, which is the one that is not cancelled.
-- Parameters: topic id (null for all), how far back restarts count in ms, injected time, parked rows that make a lane full, from which
-- age on in ms a message is stuck, how far back burials count in ms, dead letters counted at most and subscriptions at most (null: all),
-- whether cancelled ones too; topic, group, state, part of the topic or group (each null for any), after this topic, group and subscription
-- id (null for the first ones).
-- Index: subscription_group, cursor_pkey, outstanding_due, dead_letter_subscription, activity_pkey, owner_pkey, message primary key.
SELECT now.at AS now, s.subscription_id, s.topic_id, t.name AS topic, s.group_name, s.lanes, s.state, s.state_at, s.state_reason, b.heartbeat_at,
       coalesce(s.heartbeat_timeout_ms, t.heartbeat_timeout_ms) AS heartbeat_timeout_ms,
       CASE WHEN b.heartbeat_at <= now.at THEN (extract(epoch FROM now.at - b.heartbeat_at) * 1000)::bigint
            WHEN b.heartbeat_at IS NOT NULL THEN 0 END AS heartbeat_age_ms,
       c.next_offset, f.floor, f.lag, p.published_at AS oldest_pending,
       CASE WHEN u.until IS NULL THEN 0
            WHEN s.lanes > 0 THEN greatest(u.until - f.floor, 0)
            ELSE greatest(u.until - c.next_offset + 1, 0) + (
                SELECT coalesce(sum(least(q.last_offset, u.until) - q.first_offset + 1), 0)::bigint
                FROM {schema}.outstanding q WHERE q.subscription_id = s.subscription_id AND q.first_offset <= u.until) END AS stuck,
       o.leased, o.waiting, o.in_flight, o.retrying, s.reassigned, s.missed, s.missed_first, s.missed_last,
       CASE WHEN s.lanes > 0 THEN (
           SELECT count(*) FROM (
               SELECT q.lane FROM {schema}.outstanding q WHERE q.subscription_id = s.subscription_id AND q.parked
               GROUP BY q.lane HAVING count(*) >= $4) l) ELSE 0 END AS lanes_full,
       (SELECT count(*) FROM (SELECT FROM {schema}.dead_letter d WHERE d.subscription_id = s.subscription_id LIMIT $7::bigint) l) AS dead_letters,
       (SELECT count(*) FROM (SELECT FROM {schema}.dead_letter d WHERE d.subscription_id = s.subscription_id
            AND d.buried_at > now.at - make_interval(secs => $6::bigint / 1000.0) LIMIT $7::bigint) l) AS buried_lately,
       a.processed, a.failed, a.filtered, a.rate, a.handling_mean_us, a.handling_p95_us, a.processes,
       CASE WHEN s.restarts_since >= now.at - make_interval(secs => $2::bigint / 1000.0) AND f.floor <= s.restarts_floor
            THEN s.restarts ELSE 0 END AS restarts
FROM (SELECT coalesce($3::timestamptz, clock_timestamp()) AS at) now
CROSS JOIN (
    SELECT x.* FROM {schema}.subscription x JOIN {schema}.topic y ON y.topic_id = x.topic_id
    WHERE ($1::integer IS NULL OR x.topic_id = $1) AND ($9::boolean OR x.state <> 'cancelled')
      AND ($10::text IS NULL OR y.name = $10) AND ($11::text IS NULL OR x.group_name = $11) AND ($12::text IS NULL OR x.state = $12)
      AND ($13::text IS NULL OR strpos(lower(y.name), lower($13)) > 0 OR strpos(lower(x.group_name), lower($13)) > 0)
      AND ($14::text IS NULL OR (y.name, x.group_name, -x.subscription_id) > ($14, $15::text, -$16::integer))
    ORDER BY y.name, x.group_name, x.subscription_id DESC LIMIT $8::bigint
) s
JOIN {schema}.topic t ON t.topic_id = s.topic_id
-- Where the head will be after the next advance: a group without a consumer lags behind what was published, not behind a head
-- that no claim advances.
CROSS JOIN LATERAL (
    SELECT greatest((SELECT e.head FROM {schema}.head e WHERE e.topic_id = t.topic_id),
                    (SELECT m.message_offset FROM {schema}.messages(t.topic_id) m
                     ORDER BY m.message_offset DESC LIMIT 1)) AS head
) h
CROSS JOIN LATERAL (
    SELECT min(q.next_offset) AS next_offset FROM {schema}.cursor q WHERE q.subscription_id = s.subscription_id
) c
CROSS JOIN LATERAL (
    SELECT min(q.first_offset) AS lowest, coalesce(sum(q.last_offset - q.first_offset + 1), 0)::bigint AS offsets,
           count(*) FILTER (WHERE q.owner IS NOT NULL AND q.due_at > now.at) AS leased,
           count(*) FILTER (WHERE q.owner IS NULL OR q.due_at <= now.at) AS waiting,
           coalesce(sum(q.last_offset - q.first_offset + 1) FILTER (WHERE q.owner IS NOT NULL AND q.due_at > now.at), 0)::bigint
               AS in_flight,
           coalesce(sum(q.last_offset - q.first_offset + 1) FILTER (
               WHERE q.owner IS NULL AND q.attempts > 0 AND NOT q.parked AND q.due_at > now.at), 0)::bigint AS retrying
    FROM {schema}.outstanding q WHERE q.subscription_id = s.subscription_id
) o
CROSS JOIN LATERAL (
    SELECT least(c.next_offset, o.lowest) - 1 AS floor,
           CASE WHEN s.lanes > 0 THEN greatest(h.head - least(c.next_offset, o.lowest) + 1, 0)
                ELSE greatest(h.head - c.next_offset + 1, 0) + o.offsets END AS lag
) f
CROSS JOIN LATERAL (
    SELECT CASE WHEN f.lag > 0 THEN (
        SELECT m.created_at FROM {schema}.messages(s.topic_id, f.floor + 1) m ORDER BY m.message_offset LIMIT 1) END AS published_at
) p
-- How far messages are old; searched for only where the oldest is.
CROSS JOIN LATERAL (
    SELECT CASE WHEN p.published_at < now.at - make_interval(secs => $5::bigint / 1000.0)
                THEN {schema}.last_older(s.topic_id, f.floor + 1, h.head, $5::bigint, $3::timestamptz) END AS until
) u
CROSS JOIN LATERAL (
    -- Totals are of all owners, also of those that departed; recent figures are of owners with heartbeats.
    SELECT coalesce(sum(q.processed), 0)::bigint AS processed, coalesce(sum(q.failed), 0)::bigint AS failed,
           coalesce(sum(q.filtered), 0)::bigint AS filtered, coalesce(sum(q.rate) FILTER (WHERE l.lives), 0) AS rate,
           coalesce(sum(q.handling_mean_us * q.rate) FILTER (WHERE l.lives) / nullif(sum(q.rate) FILTER (WHERE l.lives), 0),
                    avg(q.handling_mean_us) FILTER (WHERE l.lives), 0)::bigint AS handling_mean_us,
           coalesce(max(q.handling_p95_us) FILTER (WHERE l.lives), 0) AS handling_p95_us,
           count(*) FILTER (WHERE l.lives) AS processes, max(q.seen_at) AS seen_at
    FROM {schema}.activity_seen q
    CROSS JOIN LATERAL (
        SELECT q.owner <> '' AND q.seen_at > now.at
            - make_interval(secs => coalesce(s.heartbeat_timeout_ms, t.heartbeat_timeout_ms) / 1000.0) AS lives) l
    WHERE q.subscription_id = s.subscription_id
) a
-- As the view "heard" has it.
CROSS JOIN LATERAL (SELECT greatest(s.heartbeat_at, a.seen_at) AS heartbeat_at) b
ORDER BY t.name, s.group_name, s.subscription_id DESC
