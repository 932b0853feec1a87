-- Waiting: whether a claim may find something, now or later; and waking consumers that wait, in any process.

-- Whether a range of a subscription is due: at once ('-infinity'), or between two times.
CREATE OR REPLACE FUNCTION {schema}.any_due(p_subscription_id integer, p_since timestamptz, p_now timestamptz, p_parked boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id AND o.due_at = '-infinity'
                   AND (p_parked OR NOT o.parked))
        OR EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id AND o.due_at >= p_since
                   AND o.due_at <= p_now AND (p_parked OR NOT o.parked));
END $$;

-- After how many milliseconds another claim may find something without a new publish; null if only a publish can change that in the
-- next 30 seconds. Ranges that are due later are not searched for: the entries of leases that were settled long before their deadline are
-- there, one for each earlier claim if an old snapshot keeps them. Every waiting process claims again, or checks
-- (claimable, listen), within 30 seconds.
CREATE OR REPLACE FUNCTION {schema}.recheck_ms(p_subscription_id integer, p_topic_id integer, p_due_since timestamptz, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_due timestamptz;
    v_later bigint;
    v_soon bigint;
    h {schema}.head;
    v_age_ms double precision;
    -- A variable: with a volatile argument the function below is not inlined, and is planned again at each call.
    v_clock timestamptz := clock_timestamp();
BEGIN
    SELECT least(
        (SELECT min(o.due_at) FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id
         AND o.due_at > p_now AND o.due_at <= p_now + interval '30 seconds' AND NOT o.parked),
        (SELECT min(s.deliver_at) FROM {schema}.schedule s WHERE s.topic_id = p_topic_id)) INTO v_due;
    v_later := CASE WHEN v_due IS NOT NULL THEN greatest(ceil(extract(epoch FROM v_due - p_now) * 1000), 1) END;
    SELECT * INTO h FROM {schema}.head e WHERE e.topic_id = p_topic_id ORDER BY e.era LIMIT 1;
    IF h.stuck_at IS NOT NULL THEN
        -- The head waits for the commit of a transaction: claim again when gap_patience ends, and then ever more rarely.
        v_age_ms := {schema}.stamp_age_ms(h.stuck_since, v_clock);
        SELECT CASE WHEN v_age_ms < t.gap_patience_ms THEN greatest(t.gap_patience_ms + 1 - v_age_ms, 5)
                    ELSE least(greatest(v_age_ms / 4, 5), 100) END
        INTO v_soon FROM {schema}.topic t WHERE t.topic_id = p_topic_id;
    ELSIF h.head < (SELECT coalesce(pg_sequence_last_value(t.offsets), 0) FROM {schema}.topic t WHERE t.topic_id = p_topic_id) THEN
        v_soon := 5;
    ELSIF h.gaps_until > 0 THEN
        -- A late message has no offset beyond the head, and may come without a notification.
        v_soon := 100;
    END IF;
    IF {schema}.any_due(p_subscription_id, p_due_since, p_now, false) THEN
        -- Due but not handed out: a suspect range waits until this owner holds nothing else, or a range waits for its lane.
        v_soon := least(v_soon, 50);
    END IF;
    RETURN least(v_later, v_soon);
END $$;

-- The row that requests another claim after p_recheck_ms.
CREATE OR REPLACE FUNCTION {schema}.recheck(p_subscription_id integer, p_topic_id integer, p_recheck_ms bigint) RETURNS {schema}.claimed
LANGUAGE plpgsql AS $$
BEGIN
    RETURN ROW('recheck', p_subscription_id, p_topic_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
               p_recheck_ms, NULL, NULL)::{schema}.claimed;
END $$;

-- The subscriptions for which a claim may find something. A subscription is idle if it is active, its cursors are past the head,
-- no range is outstanding that is due or will be, and an empty claim would not request to be repeated: recheck_ms() is the very function
-- that claims use. It covers offsets that are taken but not committed, gaps, and scheduled messages. Reads only.
CREATE OR REPLACE FUNCTION {schema}.claimable(p_subscription_ids integer[], p_now {schema}.injected_time) RETURNS TABLE (subscription_id integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    RETURN QUERY
    SELECT i.id FROM unnest(p_subscription_ids) AS i(id)
    LEFT JOIN {schema}.subscription s ON s.subscription_id = i.id AND s.state = 'active'
    LEFT JOIN {schema}.head h ON h.topic_id = s.topic_id
    WHERE h.topic_id IS NULL
       OR EXISTS (SELECT FROM {schema}.cursor c WHERE c.subscription_id = i.id AND c.next_offset <= h.head)
       -- The ack of another process frees a parked range, and that process may end before it wakes the others.
       OR EXISTS (SELECT FROM {schema}.outstanding o WHERE o.subscription_id = i.id AND (o.parked OR o.due_at < 'infinity'))
       OR {schema}.recheck_ms(i.id, s.topic_id, '-infinity', v_now) IS NOT NULL;
END $$;

-- Wakes consumers of a topic that have raised their flag. NOTIFY serialises commits across the cluster, so it is skipped if there
-- is no flag. A consumer that raises its flag after this check finds the offsets taken (see "advance") and claims again soon, so no
-- message is missed. PostgreSQL merges equal notifications of one transaction.
--
-- p_anyway notifies without the check: a snapshot older than the flag cannot see it, and a scheduled message takes no offset that
-- a claim could find. A transaction that has notified cannot be prepared. So if the server allows PREPARE TRANSACTION, only
-- transactions that are certainly not prepared notify (p_own), and waiting processes poll every few milliseconds.
CREATE OR REPLACE FUNCTION {schema}.wake(p_topic_id integer, p_own boolean, p_anyway boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT p_own AND current_setting('max_prepared_transactions') <> '0' THEN
        RETURN;
    END IF;
    IF p_anyway OR current_setting('transaction_isolation') <> 'read committed'
       OR EXISTS (SELECT FROM {schema}.waiter w WHERE w.topic_id = p_topic_id AND w.until > clock_timestamp()) THEN
        PERFORM pg_notify('headwater:{name}', p_topic_id::text);
    END IF;
END $$;

-- Raises the flag of a process that waits for these topics, for p_for_ms of the server's time.
CREATE OR REPLACE FUNCTION {schema}.raise_flag(p_topic_ids integer[], p_waiter_id uuid, p_for_ms bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO {schema}.waiter AS w (topic_id, waiter_id, until)
    SELECT DISTINCT t, p_waiter_id, clock_timestamp() + make_interval(secs => p_for_ms / 1000.0)
    FROM unnest(p_topic_ids) t ORDER BY t
    ON CONFLICT (topic_id, waiter_id) DO UPDATE SET until = excluded.until;
END $$;
