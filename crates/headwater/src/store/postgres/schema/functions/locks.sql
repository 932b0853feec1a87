-- The order of locks, and how claims and operators exclude each other.
--
-- The topic's row in "topic_range" is the lock of maintenance: every function that removes messages, writes completion records or
-- moves a subscription's position in the log (subscribe, resurrect, seek, cancel) locks it FOR UPDATE in its transaction, redrive
-- FOR SHARE, and reads the data only after it has the lock. Claims, settlements and publishing never lock it.
--
-- The order in which every function that waits for locks takes them:
--
--   clock, topic_range (by topic), claims_N (by number), head (by topic), group_rate, subscription, cursor (each by subscription, lane),
--   outstanding (by subscription, lane, first_offset), owner (by name), activity (by subscription, owner), outbox_entry (by id),
--   dead_letter (by id)
--
-- Sweeps of the outbox lock its entries with SKIP LOCKED, in the order of their creation, and wait for none (functions/outbox.sql).
--
-- Ranges are not ordered by token: a range gets a new token when it is handed out again, and a session that waited for it would
-- then hold a lock at another position of the order than the one it requested.
--
-- A table lock with NOWAIT never waits and may be taken at any point. A row lock with SKIP LOCKED or NOWAIT does wait in one
-- case: the row was updated by a transaction that ends at this moment, and another has already locked the new version. The server
-- then follows the row to its new version and waits there ("while locking updated version" in its log). So these locks keep the
-- order, too: a claim takes claims_N and then the head, and an operator that holds a head waits for no claim of its subscription.
-- A heartbeat locks no row of another owner: leases of silent owners end in transactions of their own, one for each owner. Sessions that
-- wait only in this way never wait for each other in a circle: each would have locked its row after the other had begun to wait for it.
-- One exception: the head that a claim locks FOR SHARE beside a gap (take_next) comes after its cursor. A deadlock there would need
-- a second claim of the same group in the same microseconds; the server then aborts one of the two, which is retried.
-- Where several rows of a table are changed they are locked first, in the order above: an UPDATE or DELETE alone locks them in the
-- order in which its plan finds them. A settlement of parts replaces the rows of its lease. A session that waited for one of these finds it gone,
-- and must find the rest before it locks anything later in the order: lock_leases() and settle_all() search again, from there on. An UPDATE
-- that found the rest only after it had locked other leases could wait for a session that waits for those.
--
-- A claim departs from the order once: it holds a range (which was free), and then a cursor, when it counts an expiry in the
-- subscription. Nothing that holds a subscription waits for a cursor or a range of it beside such a claim:
--
--   1. The fast path of a claim (one statement) takes the head if it is free, locks the cursor and then reads the newest version
--      of the cursor. Therefore the state is also stored in the cursor (cursor.active), and a change of state waits for claims that
--      hold the cursor: afterwards no running claim has seen it active, and none begins.
--   2. The slow path holds claims_N in a shared mode, from before it reads the state until its end. Operators hold it exclusively
--      before they lock anything of the subscription: then no claim on the slow path is running. It costs a claim no write and no
--      xid, because it is the lock of a table: one of 16 tables that are always empty, chosen by subscription_id, as a claim for a
--      thousand subscriptions must not fill the server's lock table. It is not an advisory lock: every role that connects could
--      take that, and block all claims. The lock of a table needs rights on it, which no role is granted, and these functions
--      run with the rights of their owner. Vacuum and pg_dump do not conflict with a claim.
--
--      The fast path may have locked the cursor and then found that it is not active. A claim that has locked anything does not
--      wait for an operator, which may be waiting for that lock: the claim returns, and is repeated a little later.
--
-- Cleanup and the detector count as operators here: they write the subscription and then its cursors. They lock all tables at
-- once, in order, because a claim for many subscriptions waits for them in that order.

-- Excludes operators, or with p_alone claims on the slow path, from subscriptions until the transaction ends. Locks in one order.
-- False if this is a claim that must not wait and would have to.
CREATE OR REPLACE FUNCTION {schema}.hold_claims(p_subscription_ids integer[], p_alone boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_tables text;
BEGIN
    SELECT string_agg('{schema}.claims_' || b.n, ', ' ORDER BY b.n) INTO v_tables
    FROM (SELECT DISTINCT u % 16 AS n FROM unnest(p_subscription_ids) u) b;
    IF v_tables IS NULL THEN
        RETURN true;
    END IF;
    IF p_alone THEN
        EXECUTE 'LOCK TABLE ' || v_tables || ' IN EXCLUSIVE MODE';
    ELSIF pg_current_xact_id_if_assigned() IS NULL THEN
        EXECUTE 'LOCK TABLE ' || v_tables || ' IN ROW SHARE MODE';
    ELSE
        -- A transaction that has locked a row has an xid.
        BEGIN
            EXECUTE 'LOCK TABLE ' || v_tables || ' IN ROW SHARE MODE NOWAIT';
        EXCEPTION
            WHEN lock_not_available THEN RETURN false;
        END;
    END IF;
    RETURN true;
END $$;

-- Takes the lock of maintenance on a topic.
CREATE OR REPLACE FUNCTION {schema}.lock_topic_range(p_topic_id integer) RETURNS {schema}.topic_range
LANGUAGE sql AS $$ SELECT e.* FROM {schema}.topic_range e WHERE e.topic_id = p_topic_id FOR UPDATE $$;

-- Takes the lock of maintenance, and checks that statements after it see current data.
CREATE OR REPLACE FUNCTION {schema}.begin_maintenance(p_topic_id integer) RETURNS {schema}.topic_range
LANGUAGE plpgsql AS $$
DECLARE
    e {schema}.topic_range;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
            'invalid transaction: maintenance needs a new snapshot after its lock, which %s does not give; use read committed',
            current_setting('transaction_isolation'));
    END IF;
    SELECT x.* INTO e FROM {schema}.topic_range x WHERE x.topic_id = p_topic_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = format('no such topic: number %s', p_topic_id);
    END IF;
    RETURN e;
END $$;
