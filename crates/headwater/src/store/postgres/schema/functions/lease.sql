-- Leases: tokens, expiry, and burying.
--
-- A known row of "outstanding", and the rows of a known lease, are found by the primary key alone: token and first offset. The table is empty most of the
-- time, so by its statistics all its indexes cost the same, and a plan made then may read every entry of another index, those of
-- thousands of dead rows included. So a row is compared as a whole, (token, first_offset) BETWEEN, and other columns of indexes with IS
-- TRUE: only the primary key can serve these conditions. "token =" beside the comparison is for the planner, which takes the comparison
-- alone for a ninth of the table.

-- A fencing token that was never issued before: the count of hand-outs above 31 random bits. The count alone repeats after a loss
-- of commits: claims commit asynchronously, so a crash undoes the last of them and the sequence with them, and a failover or a
-- restored copy goes back further. The random bits alone could repeat. Together a lost token equals a later one only if both
-- parts agree. Tokens rise until the count passes 32 bits, and so share pages of the index.
CREATE OR REPLACE FUNCTION {schema}.new_token() RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT ((nextval('{schema}.lease_token') & 4294967295) << 31) | floor(random() * 2147483648)::bigint
$$;

-- Marks an expired lease: it counts as an attempt, and its range is suspect from now on. Only a range of one message may use up
-- its last attempt: a message must never be buried because of its neighbour. Rows of an old token get a new one.
CREATE OR REPLACE FUNCTION {schema}.expire(p_row {schema}.outstanding, p_max_attempts integer) RETURNS {schema}.outstanding
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.outstanding := p_row;
BEGIN
    r.attempts := CASE WHEN r.first_offset = r.last_offset THEN r.attempts + 1
                       ELSE greatest(least(r.attempts + 1, p_max_attempts - 1), 0) END;
    r.suspect := true;
    r.last_error := 'lease expired: held by ' || r.owner;
    r.owner := NULL;
    r.due_at := '-infinity';
    r.token := {schema}.new_token();
    UPDATE {schema}.outstanding o
    SET token = r.token, attempts = r.attempts, suspect = true, last_error = r.last_error, owner = NULL, due_at = r.due_at
    WHERE o.token = p_row.token AND (o.token, o.first_offset) BETWEEN (p_row.token, p_row.first_offset) AND (p_row.token, p_row.first_offset);
    UPDATE {schema}.subscription s SET reassigned = s.reassigned + 1 WHERE s.subscription_id = r.subscription_id;
    RETURN r;
END $$;

-- How many offsets of a suspect range to hand out: half, and a single one for the last attempt; 0 means bury it.
CREATE OR REPLACE FUNCTION {schema}.hand_out_again(p_span bigint, p_attempts integer, p_max_attempts integer) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_span = 1 AND p_attempts >= p_max_attempts THEN 0
                WHEN p_attempts + 1 >= p_max_attempts THEN 1
                ELSE (p_span + 1) / 2 END
$$;

-- Leases the first p_take offsets of a waiting row to an owner; the rest stays waiting under a token of its own.
CREATE OR REPLACE FUNCTION {schema}.lease_row(p_row {schema}.outstanding, p_take bigint, p_owner text, p_deadline timestamptz)
RETURNS {schema}.outstanding
LANGUAGE plpgsql AS $$
DECLARE
    r {schema}.outstanding := p_row;
BEGIN
    r.last_offset := p_row.first_offset + p_take - 1;
    r.token := {schema}.new_token();
    r.owner := p_owner;
    r.due_at := p_deadline;
    r.parked := false;
    UPDATE {schema}.outstanding o
    SET token = r.token, last_offset = r.last_offset, owner = r.owner, due_at = r.due_at, parked = false
    WHERE o.token = p_row.token AND (o.token, o.first_offset) BETWEEN (p_row.token, p_row.first_offset) AND (p_row.token, p_row.first_offset);
    IF r.last_offset < p_row.last_offset THEN
        INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, attempts, lane,
                                          suspect, parked, owner, key, last_error)
        VALUES ({schema}.new_token(), r.last_offset + 1, p_row.last_offset, '-infinity', r.subscription_id,
                r.attempts, r.lane, r.suspect, p_row.parked, NULL, r.key, r.last_error);
    END IF;
    RETURN r;
END $$;

-- The owner of the last lease of an expired range, from the error that "expire" stored; null if there is another error.
CREATE OR REPLACE FUNCTION {schema}.last_holder(r {schema}.outstanding) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(r.last_error FROM '^lease expired: held by (.+)$')
$$;

-- The reason of a dead letter whose attempts all ended with a lost lease.
CREATE OR REPLACE FUNCTION {schema}.lost_leases(r {schema}.outstanding) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT 'lease expired ' || r.attempts || ' times' || coalesce('; last held by ' || {schema}.last_holder(r), '')
$$;

-- Buries a suspect message that has used up its attempts; returns a row that reports it.
CREATE OR REPLACE FUNCTION {schema}.bury_suspect(r {schema}.outstanding, p_topic_id integer, p_now timestamptz) RETURNS {schema}.claimed
LANGUAGE plpgsql AS $$
DECLARE
    v_error text := {schema}.lost_leases(r);
BEGIN
    PERFORM {schema}.bury_range(r.subscription_id, p_topic_id, r.first_offset, r.last_offset, r.attempts, v_error,
                                {schema}.last_holder(r), p_now);
    DELETE FROM {schema}.outstanding o
    WHERE o.token = r.token AND (o.token, o.first_offset) BETWEEN (r.token, r.first_offset) AND (r.token, r.first_offset);
    RETURN {schema}.note('buried', r, v_error);
END $$;

-- Locks the rows of leases as they are now, in the order of locks (functions/locks.sql), and returns them: statements after it find
-- exactly these rows under the tokens, until the transaction ends.
--
-- The rows under a token only become fewer, or smaller. Who settles or removes a part of a range holds its row, and replaces it by rows of the
-- same token for what is left; all else that is written to a row removes it, gives it another token, or leaves its range as it is. So if each row that a
-- search found is locked with the range it was found with, none was replaced since the snapshot of the search: there are no others.
-- Else the search is repeated, as a new statement, which finds the rows that were inserted. They are in the range of the row they
-- replaced, and so after all rows that are locked already: the order of locks holds across searches. Each repetition follows a
-- commit of another session.
--
-- It sets no planner option, because that takes time at each settlement: functions that call it do, since its plans are cached for all of them.
CREATE OR REPLACE FUNCTION {schema}.lock_leases(p_tokens bigint[]) RETURNS SETOF {schema}.outstanding
LANGUAGE plpgsql ROWS 1 AS $$
DECLARE
    v_found record;
    v_last {schema}.outstanding;
    r {schema}.outstanding;
BEGIN
    <<search>>
    LOOP
        -- One token at a time, for the reason given at settle_all.
        FOR v_found IN
            SELECT l.token, l.first_offset, l.last_offset FROM unnest(p_tokens) AS w (token)
            CROSS JOIN LATERAL (SELECT x.* FROM {schema}.outstanding x WHERE x.token = w.token OFFSET 0) l
            WHERE v_last.token IS NULL OR (l.subscription_id, coalesce(l.lane, 0), l.first_offset)
                                          > (v_last.subscription_id, coalesce(v_last.lane, 0), v_last.first_offset)
            ORDER BY l.subscription_id, l.lane, l.first_offset
        LOOP
            SELECT o.* INTO r FROM {schema}.outstanding o
            WHERE o.token = v_found.token
              AND (o.token, o.first_offset) BETWEEN (v_found.token, v_found.first_offset) AND (v_found.token, v_found.first_offset) FOR UPDATE;
            CONTINUE search WHEN NOT FOUND;
            v_last := r;
            RETURN NEXT r;
            CONTINUE search WHEN r.last_offset <> v_found.last_offset;
        END LOOP;
        EXIT;
    END LOOP;
END $$;
