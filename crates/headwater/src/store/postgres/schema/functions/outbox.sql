-- The outbox: entries for external brokers. NEW -> CLAIMED -> PUBLISHED; or FAILED until next_at, and PARKED with a dead letter once
-- attempts run out.
--
-- A sweep takes entries that are due. Each is in exactly one of three partial indexes, so entries that are not due cost nothing:
--   outbox_new       NEW without next_at;
--   outbox_next      any entry whose next_at has passed: it failed, or "reschedule" gave it back;
--   outbox_claimed   CLAIMED without next_at, one claim timeout after claimed_at: its claimer is taken for dead.
--
-- Why concurrent sweeps share no entry and wait for none. Each branch locks its rows with SKIP LOCKED before anything is changed: a
-- row that another transaction has locked is skipped. A row that another sweep changed and committed since the snapshot of this
-- statement is read again in its newest version before it is locked, and is then CLAIMED and no longer due. So the rows that are
-- updated were due, locked by this statement alone, and stay locked until it commits. A branch may lock rows that are not among the
-- oldest in the end: they stay as they are, and are free again at the end of the transaction.
--
-- Why a claimer that lost its entry changes nothing. "mark_published", "mark_failed" and "reschedule" change an entry only while
-- claimed_by is the caller, and every sweep sets claimed_by. A claimer's name is therefore unique: one process, one life.

-- Inserts an entry, in the transaction of the caller, and returns its id. p_own: the transaction is the library's, and never prepared.
CREATE OR REPLACE FUNCTION {schema}.insert_returning_id(
    category text, topic text, key text, type text, payload bytea, headers jsonb DEFAULT NULL,
    payload_bytes_max integer DEFAULT 1048576, p_now {schema}.injected_time DEFAULT NULL, p_own boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_id bigint;
BEGIN
    IF category IS NULL OR category NOT IN ('command', 'event', 'reply') THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid category: must be command, event or reply';
    END IF;
    IF topic IS NULL OR type IS NULL OR payload IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid entry: topic, type and payload must not be null';
    END IF;
    PERFORM {schema}.check_name('topic', topic), {schema}.check_name('key', key), {schema}.check_name('type', type);
    IF headers IS NOT NULL THEN
        PERFORM {schema}.check_headers(ARRAY[headers]);
    END IF;
    IF octet_length(payload) > least(payload_bytes_max, 67108864) THEN
        RAISE EXCEPTION USING ERRCODE = 'HW002', DETAIL = octet_length(payload) || ' ' || least(payload_bytes_max, 67108864),
            MESSAGE = format('payload too large: %s bytes, the outbox allows %s; raise payload_bytes_max or store the payload elsewhere',
                             octet_length(payload), least(payload_bytes_max, 67108864));
    END IF;
    -- As for published messages: an entry survives a crash, whatever the session has set.
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    INSERT INTO {schema}.outbox_entry AS e (category, topic, key, type, payload, headers, created_at)
    VALUES (insert_returning_id.category, insert_returning_id.topic, insert_returning_id.key, insert_returning_id.type,
            insert_returning_id.payload, coalesce(insert_returning_id.headers, '{}'), coalesce(p_now, clock_timestamp()))
    RETURNING e.id INTO v_id;
    -- Topics are numbered from 1: 0 is the outbox. A relay that raises its flag after this check, and sweeps before this commits, finds
    -- the entry with its next poll.
    PERFORM {schema}.wake(0, p_own, false);
    RETURN v_id;
END $$;

-- Claims an entry that is NEW. No row if it is claimed already, or absent.
CREATE OR REPLACE FUNCTION {schema}.claim_if_new(id bigint, claimer text, p_now {schema}.injected_time DEFAULT NULL)
RETURNS SETOF {schema}.outbox_entry
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM {schema}.check_claimer(claimer);
    RETURN QUERY
    UPDATE {schema}.outbox_entry e
    SET status = 'CLAIMED', claimed_by = claim_if_new.claimer, claimed_at = coalesce(p_now, clock_timestamp()), next_at = NULL
    WHERE e.id = claim_if_new.id AND e.status = 'NEW'
    RETURNING e.*;
END $$;

-- Raises InvalidInput (HW003) unless this is a name.
CREATE OR REPLACE FUNCTION {schema}.check_claimer(p_claimer text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_claimer IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid claimer: must not be null';
    END IF;
    PERFORM {schema}.check_name('claimer', p_claimer);
END $$;

-- Claims up to p_max entries that are due, oldest first. A claim that timed out counts as an attempt; an entry that has no attempt left
-- becomes PARKED with a dead letter, and is returned as well. With p_by_key an entry is held back while an older one of its topic and
-- key is unfinished, whether or not that is due.
CREATE OR REPLACE FUNCTION {schema}.sweep_outbox(
    p_max integer, p_claimer text, p_claim_timeout_ms bigint, p_max_attempts integer, p_by_key boolean, p_now {schema}.injected_time
) RETURNS SETOF {schema}.outbox_entry
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_lapsed timestamptz := {schema}.before(v_now, p_claim_timeout_ms);
BEGIN
    PERFORM {schema}.check_claimer(p_claimer);
    IF p_max IS NULL OR p_max NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid max: must be from 1 to 10000';
    END IF;
    RETURN QUERY
    WITH fresh AS MATERIALIZED (
        SELECT e.id, e.created_at FROM {schema}.outbox_entry e
        WHERE e.status = 'NEW' AND e.next_at IS NULL AND (NOT p_by_key OR {schema}.is_first_of_key(e.topic, e.key, e.id))
        ORDER BY e.created_at, e.id LIMIT p_max FOR UPDATE SKIP LOCKED
    ), retried AS MATERIALIZED (
        SELECT e.id, e.created_at FROM {schema}.outbox_entry e
        WHERE e.next_at IS NOT NULL AND e.next_at <= v_now AND (NOT p_by_key OR {schema}.is_first_of_key(e.topic, e.key, e.id))
        ORDER BY e.created_at, e.id LIMIT p_max FOR UPDATE SKIP LOCKED
    ), lapsed AS MATERIALIZED (
        SELECT e.id, e.created_at FROM {schema}.outbox_entry e
        WHERE e.status = 'CLAIMED' AND e.next_at IS NULL AND e.claimed_at <= v_lapsed
          AND (NOT p_by_key OR {schema}.is_first_of_key(e.topic, e.key, e.id))
        ORDER BY e.created_at, e.id LIMIT p_max FOR UPDATE SKIP LOCKED
    ), due AS MATERIALIZED (
        SELECT d.id, d.lapsed
        FROM (SELECT f.id, f.created_at, false AS lapsed FROM fresh f
              UNION ALL SELECT r.id, r.created_at, false FROM retried r
              UNION ALL SELECT l.id, l.created_at, true FROM lapsed l) d
        ORDER BY d.created_at, d.id LIMIT p_max
    ), swept AS (
        UPDATE {schema}.outbox_entry e
        SET status = CASE WHEN d.lapsed AND e.attempts + 1 >= p_max_attempts THEN 'PARKED' ELSE 'CLAIMED' END,
            attempts = e.attempts + d.lapsed::integer,
            last_error = CASE WHEN d.lapsed THEN 'claim by ' || e.claimed_by || ' timed out' ELSE e.last_error END,
            next_at = NULL, claimed_by = p_claimer, claimed_at = v_now
        FROM due d WHERE e.id = d.id
        RETURNING e AS entry
    ), dead_letters AS (
        INSERT INTO {schema}.dead_letter
        SELECT l.* FROM swept s CROSS JOIN LATERAL {schema}.dead_letter_of(s.entry, 'TIMED_OUT', v_now) l WHERE (s.entry).status = 'PARKED'
    )
    SELECT (s.entry).* FROM swept s ORDER BY (s.entry).created_at, (s.entry).id;
END $$;

-- Whether no older entry of the topic and key is unfinished. Older by id: for transactions of one key that follow each other ids rise,
-- also if the clock is set back between them. An entry that is published or parked never is unfinished again by itself: so of two
-- entries of a key at most one is claimed, whatever sweeps at the same time.
CREATE OR REPLACE FUNCTION {schema}.is_first_of_key(p_topic text, p_key text, p_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN p_key IS NULL OR NOT EXISTS (
        SELECT FROM {schema}.outbox_entry o
        WHERE o.topic = p_topic AND o.key = p_key AND o.id < p_id AND o.status IN ('NEW', 'CLAIMED', 'FAILED'));
END $$;

-- For programs in plain SQL: the entries that are theirs to send.
CREATE OR REPLACE FUNCTION {schema}.sweep_batch(
    max integer, claimer text, claim_timeout_s double precision DEFAULT 300, max_attempts integer DEFAULT 10, by_key boolean DEFAULT false
) RETURNS SETOF {schema}.outbox_entry
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.* FROM {schema}.sweep_outbox(max, claimer, (claim_timeout_s * 1000)::bigint, max_attempts, by_key, NULL) s
    WHERE s.status = 'CLAIMED' ORDER BY s.created_at, s.id
$$;

-- Marks entries as published. The outcome of each: published; lost (another claimer has it, it is published or parked already); unknown.
--
-- Only rows of the caller's own claim are locked, and one process marks them: two calls with the same ids, one of which is a repeat,
-- could only deadlock if they were planned differently, and the server then aborts one, which is retried.
CREATE OR REPLACE FUNCTION {schema}.mark_published(ids bigint[], claimer text, p_now {schema}.injected_time DEFAULT NULL)
RETURNS TABLE (id bigint, outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    PERFORM {schema}.check_claimer(claimer);
    RETURN QUERY
    WITH asked AS MATERIALIZED (SELECT DISTINCT u.id FROM unnest(ids) AS u (id) ORDER BY u.id),
    marked AS (
        UPDATE {schema}.outbox_entry e SET status = 'PUBLISHED', published_at = v_now, next_at = NULL
        FROM asked a WHERE e.id = a.id AND e.status IN ('CLAIMED', 'FAILED') AND e.claimed_by = claimer
        RETURNING e.id
    )
    SELECT a.id, CASE WHEN m.id IS NOT NULL THEN 'published' WHEN {schema}.is_entry(a.id) THEN 'lost' ELSE 'unknown' END
    FROM asked a LEFT JOIN marked m ON m.id = a.id ORDER BY a.id;
END $$;

CREATE OR REPLACE FUNCTION {schema}.is_entry(p_id bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$ SELECT EXISTS (SELECT FROM {schema}.outbox_entry e WHERE e.id = p_id) $$;

-- Marks entries as failed: [{"id", "error", "delay_ms" or "next_at_ms"}]. Each counts as an attempt. The outcome: failed; parked, with a dead
-- letter, because no attempt is left; lost; unknown.
CREATE OR REPLACE FUNCTION {schema}.fail_outbox(
    p_failures jsonb, p_claimer text, p_max_attempts integer, p_now {schema}.injected_time
) RETURNS TABLE (id bigint, outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    PERFORM {schema}.check_claimer(p_claimer);
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT DISTINCT ON (f.id) f.id, {schema}.bounded_error(f.error) AS error,
               coalesce(v_now + make_interval(secs => f.delay_ms / 1000.0), to_timestamp(f.next_at_ms / 1000.0), v_now) AS next_at
        FROM jsonb_to_recordset(p_failures) AS f (id bigint, error text, delay_ms bigint, next_at_ms bigint) ORDER BY f.id
    ), marked AS (
        UPDATE {schema}.outbox_entry e
        SET status = CASE WHEN e.attempts + 1 >= p_max_attempts THEN 'PARKED' ELSE 'FAILED' END,
            attempts = e.attempts + 1, last_error = a.error,
            next_at = CASE WHEN e.attempts + 1 >= p_max_attempts THEN NULL ELSE a.next_at END
        FROM asked a WHERE e.id = a.id AND e.status IN ('CLAIMED', 'FAILED') AND e.claimed_by = p_claimer
        RETURNING e.id, e.status, e AS entry
    ), dead_letters AS (
        INSERT INTO {schema}.dead_letter
        SELECT l.* FROM marked m CROSS JOIN LATERAL {schema}.dead_letter_of(m.entry, 'FAILED', v_now) l WHERE m.status = 'PARKED'
    )
    SELECT a.id, CASE WHEN m.id IS NOT NULL THEN lower(m.status) WHEN {schema}.is_entry(a.id) THEN 'lost' ELSE 'unknown' END
    FROM asked a LEFT JOIN marked m ON m.id = a.id ORDER BY a.id;
END $$;

-- For programs in plain SQL: one error for all of them. They are due again at a time, or after a delay (10 s if neither is given).
CREATE OR REPLACE FUNCTION {schema}.mark_failed(
    ids bigint[], claimer text, error text, next_at timestamptz DEFAULT NULL, delay_s double precision DEFAULT NULL,
    max_attempts integer DEFAULT 10
) RETURNS TABLE (id bigint, outcome text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.id, f.outcome FROM {schema}.fail_outbox(
        (SELECT coalesce(jsonb_agg(jsonb_build_object(
                    'id', u, 'error', error, 'next_at_ms', ceil(extract(epoch FROM next_at) * 1000)::bigint,
                    'delay_ms', CASE WHEN next_at IS NULL THEN (coalesce(delay_s, 10) * 1000)::bigint END)), '[]') FROM unnest(ids) u),
        claimer, max_attempts, NULL) f
$$;

-- Gives entries back, to be due again after a back-off: next_at and the error change, the status does not. The outcome of each:
-- rescheduled, lost or unknown.
CREATE OR REPLACE FUNCTION {schema}.reschedule(
    ids bigint[], claimer text, backoff_ms bigint, error text DEFAULT NULL, p_now {schema}.injected_time DEFAULT NULL
) RETURNS TABLE (id bigint, outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_next timestamptz := coalesce(p_now, clock_timestamp()) + make_interval(secs => backoff_ms / 1000.0);
BEGIN
    PERFORM {schema}.check_claimer(claimer);
    RETURN QUERY
    WITH asked AS MATERIALIZED (SELECT DISTINCT u.id FROM unnest(ids) AS u (id) ORDER BY u.id),
    marked AS (
        UPDATE {schema}.outbox_entry e SET next_at = v_next, last_error = coalesce({schema}.bounded_error(error), e.last_error)
        FROM asked a WHERE e.id = a.id AND e.status IN ('CLAIMED', 'FAILED') AND e.claimed_by = claimer
        RETURNING e.id
    )
    SELECT a.id, CASE WHEN m.id IS NOT NULL THEN 'rescheduled' WHEN {schema}.is_entry(a.id) THEN 'lost' ELSE 'unknown' END
    FROM asked a LEFT JOIN marked m ON m.id = a.id ORDER BY a.id;
END $$;

-- Makes entries NEW again that were claimed at least this long ago; returns how many. Those that are being marked at this moment are
-- skipped.
CREATE OR REPLACE FUNCTION {schema}.recover_stuck(older_than_ms bigint, p_now {schema}.injected_time DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_before timestamptz := {schema}.before(coalesce(p_now, clock_timestamp()), older_than_ms);
    v_count bigint;
BEGIN
    WITH claimed AS MATERIALIZED (
        SELECT e.id FROM {schema}.outbox_entry e
        WHERE e.status = 'CLAIMED' AND e.next_at IS NULL AND e.claimed_at <= v_before FOR UPDATE SKIP LOCKED
    ), given_back AS MATERIALIZED (
        SELECT e.id FROM {schema}.outbox_entry e
        WHERE e.next_at IS NOT NULL AND e.status = 'CLAIMED' AND e.claimed_at <= v_before FOR UPDATE SKIP LOCKED
    )
    UPDATE {schema}.outbox_entry e SET status = 'NEW', next_at = NULL, claimed_by = NULL, claimed_at = NULL
    FROM (SELECT c.id FROM claimed c UNION ALL SELECT g.id FROM given_back g) s WHERE e.id = s.id;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- By an operator: makes entries that failed or are parked NEW again, with no attempts. Their dead letters are deleted. Returns those
-- that were changed.
CREATE OR REPLACE FUNCTION {schema}.requeue(p_ids bigint[], p_actor text, p_now {schema}.injected_time) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_ids bigint[];
BEGIN
    -- Entries before their dead letters, as in a mark that parks.
    PERFORM FROM {schema}.outbox_entry e WHERE e.id = ANY (p_ids) AND e.status IN ('FAILED', 'PARKED') ORDER BY e.id FOR UPDATE;
    WITH changed AS (
        UPDATE {schema}.outbox_entry e
        SET status = 'NEW', attempts = 0, next_at = NULL, claimed_by = NULL, claimed_at = NULL
        WHERE e.id = ANY (p_ids) AND e.status IN ('FAILED', 'PARKED')
        RETURNING e.id
    )
    SELECT coalesce(array_agg(c.id ORDER BY c.id), '{}') INTO v_ids FROM changed c;
    DELETE FROM {schema}.dead_letter d WHERE d.outbox_id = ANY (v_ids);
    PERFORM {schema}.note_act(p_actor, 'requeue', NULL, NULL, jsonb_build_object('requeued', cardinality(v_ids)), p_now);
    RETURN QUERY SELECT unnest(v_ids);
END $$;

-- Deletes entries that were published longer ago than the retention, at most p_max, and fewer if their payloads are large. Those
-- another round is removing are skipped. Returns how many, and whether there may be more.
CREATE OR REPLACE FUNCTION {schema}.forget_published(
    p_retention_ms {schema}.outbox_age_ms, p_max integer, p_now {schema}.injected_time, OUT forgotten bigint, OUT more boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_ids bigint[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    WITH page AS (
        SELECT e.published_at, e.id, pg_column_size(e.payload) AS bytes FROM {schema}.outbox_entry e
        WHERE e.status = 'PUBLISHED' AND e.published_at <= {schema}.before(coalesce(p_now, clock_timestamp()), p_retention_ms)
        ORDER BY e.published_at LIMIT p_max
    ), summed AS (
        SELECT p.id, sum(p.bytes) OVER (ORDER BY p.published_at, p.id ROWS UNBOUNDED PRECEDING) - p.bytes AS bytes_before FROM page p
    )
    SELECT array_agg(s.id) FILTER (WHERE s.bytes_before < {schema}.removal_bytes()),
           count(*) = p_max OR coalesce(max(s.bytes_before) >= {schema}.removal_bytes(), false)
    INTO v_ids, more FROM summed s;
    -- Only entries that are removed are locked. Their status is compared again: an operator may have requeued one meanwhile.
    DELETE FROM {schema}.outbox_entry o
    WHERE o.ctid = ANY (ARRAY(SELECT e.ctid FROM {schema}.outbox_entry e WHERE e.id = ANY (v_ids) AND e.status = 'PUBLISHED'
                              ORDER BY e.id FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    more := more AND forgotten > 0;
END $$;
