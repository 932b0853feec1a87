-- The order of locks, and how claims and operators are held apart.
--
-- One row per topic in "extent" is the lock of upkeep: whoever removes messages, makes records or moves a subscription's
-- place against the log (subscribe, resurrect, seek, redrive, cancel) holds it FOR UPDATE in its transaction and looks
-- only after it has it. Claims, settlements and publishing never touch it.
--
-- The order of locks, of everything that waits for them:
--
--   extent (by topic), claims_N (by number), head (by topic), group_rate, subscription, cursor (each by subscription, lane),
--   outstanding (by subscription, lane, first_offset), owner (by name), activity (by subscription, owner), dead_letter (by id)
--
-- The order of ranges is not that of tokens: a range gets a new one when it is handed out again, and a session that waited for it then has
-- a place in the order that is not the one it asked for.
--
-- A table lock with NOWAIT waits for nothing and may be taken at any point. A row lock with SKIP LOCKED or NOWAIT does wait in one
-- case: the row was updated by a transaction that ends at this moment, and another has locked the new version already. The
-- server then follows the row to its new version and waits there ("while locking updated version" in its log). So these keep the order,
-- too: a claim takes claims_N and then the head, and an operator that has a head waits for no claim of its subscription. Only the head
-- that a claim locks FOR SHARE beside a gap (take_next) comes after its cursor; there the case would need a second claim
-- of the same group in the same microseconds, and the server ends one of the two, which is tried again.
-- Where several rows of a table are changed they are locked first, in the order above: an UPDATE or DELETE alone takes them as
-- its plan finds them.
--
-- A claim departs from it in one place: it has a range (free), and then a cursor, when it counts an expiry in the subscription.
-- Nothing that has a subscription waits for a cursor or a range of it beside such a claim:
--
--   1. The short way of a claim (one statement) takes the head if it is free, locks the cursor and reads it again, in its newest
--      version, once it has it. Therefore a state is also on the cursor (cursor.active), and a change of it waits for claims that hold the
--      cursor: afterwards none is under way that saw it active, and none begins.
--   2. The long way holds claims_N, shared, from before it reads the state until its end. Operators hold it alone before they
--      lock anything of the subscription: no claim of that kind is under way then. It costs a claim no write and no xid,
--      because it is the lock of a table: of 16 that are always empty one by subscription_id, as a claim that serves a
--      thousand subscriptions must not fill the server's lock table. It is no advisory lock: every role that connects may
--      take those, and stop all claims. The lock of a table needs rights on it, which no role is granted, and these functions
--      run with their owner's. Vacuum and pg_dump conflict with no claim.
--
--      The short way may have locked the cursor and then found that it is not active. A claim that has locked anything
--      does not wait for an operator who may want just that: it comes back a little later.
--
-- Cleanup and the detector are operators in this: they write the subscription and then its cursors. Tables are locked all at
-- once, in order, because a claim that serves many waits for them in that order.

-- Keeps operators (p_alone) or long claims away from subscriptions until the transaction ends. In one order. False if this is
-- a claim that must not wait and would have to.
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

-- Takes the lock of upkeep on a topic.
CREATE OR REPLACE FUNCTION {schema}.lock_extent(p_topic_id integer) RETURNS {schema}.extent
LANGUAGE sql AS $$ SELECT e.* FROM {schema}.extent e WHERE e.topic_id = p_topic_id FOR UPDATE $$;

-- Takes the lock of upkeep where looking after it makes sense.
CREATE OR REPLACE FUNCTION {schema}.begin_upkeep(p_topic_id integer) RETURNS {schema}.extent
LANGUAGE plpgsql AS $$
DECLARE
    e {schema}.extent;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = format(
            'invalid transaction: upkeep looks after it has its lock, which %s does not allow; use read committed',
            current_setting('transaction_isolation'));
    END IF;
    SELECT x.* INTO e FROM {schema}.extent x WHERE x.topic_id = p_topic_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = format('no such topic: number %s', p_topic_id);
    END IF;
    RETURN e;
END $$;
