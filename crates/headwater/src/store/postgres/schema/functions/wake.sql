-- Wake-up of waiting consumers, in any process.

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
