-- name: delivery
-- Purpose: check every invariant; one row for each violation.
-- Parameters: injected time.
-- Index: none in particular; it reads the small tables whole and the log by its ends.
WITH now AS (SELECT coalesce($1::timestamptz, clock_timestamp()) AS at)
SELECT 'outstanding_overlap' AS finding,
       format('subscription %s lane %s: offsets %s..=%s are outstanding twice', o.subscription_id, o.lane, o.first_offset,
              least(o.before, o.last_offset)) AS problem
FROM (SELECT x.subscription_id, x.lane, x.first_offset, x.last_offset,
             -- How far ranges that begin below extend.
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
SELECT 'parked_entry', format('outbox entry %s is parked and has no dead letter', e.id)
FROM {schema}.outbox_entry e
WHERE e.status = 'PARKED' AND NOT EXISTS (SELECT FROM {schema}.dead_letter d WHERE d.outbox_id = e.id)
UNION ALL
SELECT 'parked_entry', format('outbox entry %s has a dead letter and is not parked', d.outbox_id)
FROM {schema}.dead_letter d
WHERE d.outbox_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM {schema}.outbox_entry e WHERE e.id = d.outbox_id AND e.status = 'PARKED')
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
JOIN LATERAL (SELECT max(x.message_offset) AS top FROM {schema}.messages(t.topic_id) x) m ON true
WHERE m.top > {schema}.last_taken(t.topic_id)
UNION ALL
SELECT 'gap_beyond_head', format('topic %s: gap %s..=%s is beyond head %s', g.topic_id, g.first_offset, g.last_offset, h.head)
FROM {schema}.gap g JOIN {schema}.head h ON h.topic_id = g.topic_id
WHERE g.last_offset > h.head OR g.last_offset > h.gaps_until

-- name: attention
-- Purpose: what an operator should act on although no invariant is broken: transactions that stay open.
-- Parameters: injected time, after how long in ms a prepared transaction counts as left behind.
-- Index: none in particular; the small table of gaps.
SELECT 'prepared_transaction' AS finding,
       format('transaction %s of role %s was prepared at %s and not ended: dead rows stay, and its messages are not delivered',
              quote_literal(p.gid), p.owner, p.prepared) AS problem
FROM pg_prepared_xacts p
WHERE p.database = current_database()
  AND p.prepared < coalesce($1::timestamptz, clock_timestamp()) - make_interval(secs => $2::bigint / 1000.0)
UNION ALL
SELECT 'gaps_many', format('topic %s: %s gaps are noted; a publishing transaction has been open since before %s', t.name,
                           count(*), min(g.noted_at))
FROM {schema}.gap g JOIN {schema}.topic t ON t.topic_id = g.topic_id GROUP BY t.name HAVING count(*) >= 1000

-- name: durability
-- Purpose: settings of the server under which less survives than is promised; one row for each.
-- Parameters: none.
-- Index: none.
SELECT 'fsync_off' AS finding, 'fsync is off: a crash of the machine may lose or damage everything' AS problem
WHERE current_setting('fsync') = 'off'
UNION ALL
SELECT 'full_page_writes_off', 'full_page_writes is off: a crash of the machine may damage pages that were being written'
WHERE current_setting('full_page_writes') = 'off'
UNION ALL
-- What the session began with: Headwater's own sessions are raised.
SELECT 'synchronous_commit_weak',
       format('synchronous_commit is %s for role %s: publishing raises it to on, other commits of the role may be lost',
              s.reset_val, current_user)
FROM pg_settings s WHERE s.name = 'synchronous_commit' AND s.reset_val IN ('off', 'local', 'remote_write')

-- name: rights
-- Purpose: find rights that others than the owner and the granted roles have in the schema.
-- Parameters: none.
-- Index: none in particular; it reads the catalogues of the schema.
SELECT 'public_rights' AS finding, format('PUBLIC may %s %s', lower(a.privilege_type), p.oid::regprocedure) AS problem
FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
WHERE p.pronamespace = '{schema}'::regnamespace AND a.grantee = 0
UNION ALL
SELECT 'public_rights', format('PUBLIC may %s %s', lower(a.privilege_type), c.oid::regclass)
FROM pg_class c, aclexplode(c.relacl) a
WHERE c.relnamespace = '{schema}'::regnamespace AND a.grantee = 0
UNION ALL
SELECT 'public_rights', format('PUBLIC has %s on schema {name}', a.privilege_type)
FROM pg_namespace n, aclexplode(n.nspacl) a
WHERE n.nspname = '{name}' AND a.grantee = 0
UNION ALL
SELECT 'foreign_rights', format('role %s may create objects in schema {name}', pg_get_userbyid(a.grantee))
FROM pg_namespace n, aclexplode(n.nspacl) a
WHERE n.nspname = '{name}' AND a.privilege_type = 'CREATE' AND a.grantee NOT IN (0, n.nspowner)
UNION ALL
SELECT 'foreign_rights', format('%s belongs to role %s', pg_describe_object(d.classid, d.objid, 0), pg_get_userbyid(o.refobjid))
FROM pg_namespace n
JOIN pg_depend d ON d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
JOIN pg_shdepend o ON o.classid = d.classid AND o.objid = d.objid AND o.deptype = 'o' AND o.refobjid <> n.nspowner
    AND o.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
WHERE n.nspname = '{name}'

-- name: maintenance
-- Purpose: check every invariant of maintenance; one row for each violation, at most twenty of a kind.
-- Parameters: injected time.
-- Index: completion_record_pkey, message primary key; of each topic's records those where pending ones begin, and the last, are read.
WITH now AS (SELECT coalesce($1::timestamptz, clock_timestamp()) AS at),
counted AS (
    SELECT t.topic_id, t.name, t.storage, t.partition, t.tracking, e.first_offset, e.zero_until, e.tracked_until, e.pending_from,
           e.change_until, h.head, {schema}.last_taken(t.topic_id) AS taken,
           EXISTS (SELECT FROM {schema}.subscription s WHERE s.topic_id = t.topic_id
                   AND (s.state IN ('active', 'paused') OR s.state = 'dead' AND t.semantics = 'queue')) AS counts, t.semantics
    FROM {schema}.topic t JOIN {schema}.topic_range e ON e.topic_id = t.topic_id JOIN {schema}.head h ON h.topic_id = t.topic_id
),
kept AS (
    SELECT c.name, c.semantics, r.* FROM counted c
    CROSS JOIN LATERAL (
        (SELECT x.* FROM {schema}.completion_record x WHERE x.topic_id = c.topic_id AND x.message_offset >= c.pending_from
         ORDER BY x.message_offset LIMIT 50000)
        UNION
        (SELECT x.* FROM {schema}.completion_record x WHERE x.topic_id = c.topic_id ORDER BY x.message_offset DESC LIMIT 50000)
    ) r
    WHERE c.tracking = 'reference_counting'
),
found AS (
    SELECT 'topic_range_missing' AS finding, format('topic %s has no row in topic_range', t.name) AS problem
    FROM {schema}.topic t WHERE NOT EXISTS (SELECT FROM {schema}.topic_range e WHERE e.topic_id = t.topic_id)
    UNION ALL
    SELECT 'message_below_first', format('topic %s: offset %s is stored, but everything below %s was removed', c.name, m.low, c.first_offset)
    FROM counted c
    CROSS JOIN LATERAL (SELECT x.message_offset AS low FROM {schema}.messages(c.topic_id, 0, c.first_offset - 1) x
                        ORDER BY x.message_offset LIMIT 1) m
    UNION ALL
    SELECT 'first_beyond_head', format('topic %s: everything below %s was removed, but the head is %s', c.name, c.first_offset, c.head)
    FROM counted c WHERE c.first_offset > c.head + 1
    UNION ALL
    SELECT 'gap_below_first', format('topic %s: gap %s..=%s is below %s, where everything was removed', c.name, g.first_offset,
                                     g.last_offset, c.first_offset)
    FROM counted c JOIN {schema}.gap g ON g.topic_id = c.topic_id WHERE g.first_offset < c.first_offset
    UNION ALL
    SELECT 'cursor_below_first', format('topic %s, group %s: its cursor is at %s, but everything below %s was removed', c.name,
                                        s.group_name, min(x.next_offset), c.first_offset)
    FROM counted c JOIN {schema}.subscription s ON s.topic_id = c.topic_id JOIN {schema}.cursor x ON x.subscription_id = s.subscription_id
    WHERE s.state <> 'cancelled' AND x.next_offset < c.first_offset
    GROUP BY c.name, s.group_name, c.first_offset
    UNION ALL
    SELECT 'outstanding_cancelled', format('topic %s, group %s is cancelled and holds offsets %s..=%s', t.name, s.group_name,
                                           o.first_offset, o.last_offset)
    FROM {schema}.outstanding o JOIN {schema}.subscription s ON s.subscription_id = o.subscription_id
    JOIN {schema}.topic t ON t.topic_id = s.topic_id WHERE s.state = 'cancelled'
    UNION ALL
    SELECT 'zero_until_wrong', CASE WHEN c.counts THEN format('topic %s has subscriptions that count, but zero_until is unset', c.name)
                               ELSE format('topic %s has no subscription that counts, but zero_until is %s', c.name, c.zero_until) END
    FROM counted c WHERE c.counts = (c.zero_until IS NULL)
    UNION ALL
    SELECT 'tracked_beyond_head', format('topic %s: records up to %s, but the head is %s', c.name, c.tracked_until, c.head)
    FROM counted c WHERE c.tracked_until > greatest(c.head, c.first_offset - 1)
    UNION ALL
    SELECT 'bit_missing', format('topic %s, group %s counts and has no bit in the records', c.name, s.group_name)
    FROM counted c JOIN {schema}.subscription s ON s.topic_id = c.topic_id
    WHERE c.tracking = 'reference_counting' AND s.bit IS NULL AND (s.state IN ('active', 'paused') OR s.state = 'dead' AND c.semantics = 'queue')
    UNION ALL
    SELECT 'bit_twice', format('topic %s: groups %s share bit %s', c.name, string_agg(s.group_name, ', '), s.bit)
    FROM counted c JOIN {schema}.subscription s ON s.topic_id = c.topic_id
    WHERE s.bit IS NOT NULL GROUP BY c.name, s.topic_id, s.bit HAVING count(*) > 1
    UNION ALL
    SELECT 'record_stuck', format('topic %s: the record of offset %s waits for no group and is pending', k.name, k.message_offset)
    FROM kept k WHERE k.completed_at IS NULL AND k.required & ~k.completed = 0
    UNION ALL
    SELECT 'record_uncovered', format('topic %s: the record of offset %s is completed, but not for all it is for', k.name, k.message_offset)
    FROM kept k WHERE k.completed_at IS NOT NULL AND k.required & ~k.completed <> 0
    UNION ALL
    SELECT 'record_bit_unknown', format('topic %s: the record of offset %s waits for bits of no group that counts', k.name, k.message_offset)
    FROM kept k
    CROSS JOIN LATERAL (SELECT coalesce(bit_or(1::bigint << s.bit), 0) AS bits FROM {schema}.subscription s
                        WHERE s.topic_id = k.topic_id AND s.bit IS NOT NULL
                          AND (s.released_until IS NOT NULL OR s.state IN ('active', 'paused') OR s.state = 'dead' AND k.semantics = 'queue')) b
    WHERE k.completed_at IS NULL AND (k.required | k.completed) & ~b.bits <> 0
    UNION ALL
    SELECT 'record_not_applied', format('topic %s: the record of offset %s lacks group %s, which is noted as applied', k.name,
                                        k.message_offset, s.group_name)
    FROM kept k JOIN {schema}.subscription s ON s.topic_id = k.topic_id AND s.bit IS NOT NULL
         AND (s.state IN ('active', 'paused') OR s.state = 'dead' AND k.semantics = 'queue')
    WHERE k.completed_at IS NULL AND k.required & (1::bigint << s.bit) <> 0 AND k.completed & (1::bigint << s.bit) = 0
      AND s.applied @> k.message_offset
    UNION ALL
    SELECT 'record_orphan', format('topic %s: offset %s has a record and is not in the log', k.name, k.message_offset)
    FROM kept k JOIN counted c ON c.topic_id = k.topic_id
    WHERE k.message_offset >= c.first_offset
      AND NOT EXISTS (SELECT FROM {schema}.messages(k.topic_id, k.message_offset, k.message_offset))
    UNION ALL
    SELECT 'record_missing', format('topic %s: offset %s has no record, but records are kept up to %s', c.name, m.message_offset, c.tracked_until)
    FROM counted c
    CROSS JOIN LATERAL (SELECT x.message_offset FROM {schema}.messages(c.topic_id, c.first_offset, c.tracked_until) x
                        ORDER BY x.message_offset DESC LIMIT 50000) m
    WHERE c.tracking = 'reference_counting'
      AND NOT EXISTS (SELECT FROM {schema}.completion_record r WHERE r.topic_id = c.topic_id AND r.message_offset = m.message_offset)
      AND NOT EXISTS (SELECT FROM {schema}.gap g WHERE g.topic_id = c.topic_id
                      AND m.message_offset BETWEEN g.first_offset AND g.last_offset)
    UNION ALL
    SELECT 'pending_below', format('topic %s: the record of offset %s is pending, but none should be below %s', c.name,
                                   r.message_offset, c.pending_from)
    FROM counted c
    CROSS JOIN LATERAL (SELECT x.message_offset, x.completed_at FROM {schema}.completion_record x WHERE x.topic_id = c.topic_id
                        AND x.message_offset >= c.first_offset AND x.message_offset < c.pending_from
                        ORDER BY x.message_offset DESC LIMIT 50000) r
    WHERE c.tracking = 'reference_counting' AND r.completed_at IS NULL
    UNION ALL
    SELECT 'storage_missing', format('topic %s is dedicated and has no table', c.name)
    FROM counted c WHERE c.storage = 'dedicated' AND to_regclass('{schema}.message_t' || c.topic_id) IS NULL
    UNION ALL
    SELECT 'partition_missing', format('topic %s: partition %s..=%s is listed, but there is no table %s', c.name, p.first_offset,
                                       p.last_offset, p.table_name)
    FROM {schema}.partition p JOIN counted c ON c.topic_id = p.topic_id
    WHERE to_regclass(format('{schema}.%I', p.table_name)) IS NULL
    UNION ALL
    SELECT 'partitions_behind', format('topic %s: offset %s is taken and no partition is ahead', c.name, c.taken)
    FROM counted c
    WHERE c.storage = 'dedicated' AND c.partition <> 'none'
      AND c.taken >= coalesce((SELECT max(p.last_offset) FROM {schema}.partition p WHERE p.topic_id = c.topic_id), 0)
    UNION ALL
    SELECT 'rows_past_partitions', format('topic %s has rows past its partitions', c.name)
    FROM counted c WHERE c.storage = 'dedicated' AND c.partition <> 'none' AND {schema}.went_past(c.topic_id)
    UNION ALL
    SELECT 'process_log', format('process %s has version %s, and the newest entry of its log is %s', p.process_id, p.version, coalesce(e.sequence, 0))
    FROM {schema}.process p
    CROSS JOIN LATERAL (SELECT max(x.sequence) AS sequence FROM {schema}.process_event x WHERE x.process_id = p.process_id) e
    WHERE e.sequence IS DISTINCT FROM p.version
)
SELECT n.finding, n.problem FROM (SELECT f.finding, f.problem, row_number() OVER (PARTITION BY f.finding ORDER BY f.problem) AS n FROM found f) n
WHERE n.n <= 20
