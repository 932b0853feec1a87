-- The progress of subscriptions: floors, pending offsets, watermarks.

-- The floor of a subscription: everything at or below it is done.
CREATE OR REPLACE FUNCTION {schema}.floor_of(p_subscription_id integer) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN least((SELECT min(c.next_offset) FROM {schema}.cursor c WHERE c.subscription_id = p_subscription_id),
                 (SELECT min(o.first_offset) FROM {schema}.outstanding o WHERE o.subscription_id = p_subscription_id)) - 1;
END $$;

-- The offsets that a subscription has not done, without an upper end.
CREATE OR REPLACE FUNCTION {schema}.pending_of(p_subscription_id integer) RETURNS int8multirange
LANGUAGE sql STABLE AS $$
    SELECT int8multirange(int8range(min(c.next_offset), NULL)) + coalesce(
        (SELECT range_agg(int8range(o.first_offset, o.last_offset, '[]')) FROM {schema}.outstanding o
         WHERE o.subscription_id = p_subscription_id), '{}')
    FROM {schema}.cursor c WHERE c.subscription_id = p_subscription_id
$$;

-- The watermark: everything at or below is done for every subscription that counts. Without one it stays: messages published since
-- are above it, and so are those that dead groups have not done. In the caller's snapshot because the function is STABLE. In PL/pgSQL,
-- which keeps the plan: a function in SQL with settings of its own is planned by each statement that calls it.
CREATE OR REPLACE FUNCTION {schema}.watermark_of(p_topic_id integer) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    RETURN (
        SELECT least(h.head, coalesce(min(f.floor) FILTER (WHERE f.counts), least(e.zero_from - 1, min(f.floor))))
        FROM {schema}.head h
        JOIN {schema}.topic_range e ON e.topic_id = h.topic_id
        LEFT JOIN (SELECT s.topic_id, {schema}.counts(s.state, t.semantics) AS counts, {schema}.floor_of(s.subscription_id) AS floor
                   FROM {schema}.subscription s JOIN {schema}.topic t ON t.topic_id = s.topic_id
                   WHERE s.topic_id = p_topic_id AND s.state <> 'cancelled') f ON f.topic_id = h.topic_id
        WHERE h.topic_id = p_topic_id
        GROUP BY h.head, e.zero_from);
END $$;

-- The progress of all subscriptions of a topic, by id, in the caller's snapshot because the function is STABLE. In PL/pgSQL as watermark_of.
CREATE OR REPLACE FUNCTION {schema}.progress_list(p_topic_id integer) RETURNS SETOF {schema}.progress
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY
        SELECT p.subscription_id, p.group_name, p.state, p.bit, p.required_from, p.start_offset, p.next_offset, p.held, p.pending,
               p.applied, p.counts
        FROM {schema}.current_progress p WHERE p.topic_id = p_topic_id ORDER BY p.subscription_id;
END $$;

-- The progress of one subscription.
CREATE OR REPLACE FUNCTION {schema}.progress_of(p_subscription_id integer) RETURNS SETOF {schema}.progress
LANGUAGE sql STABLE AS $$
    SELECT p.subscription_id, p.group_name, p.state, p.bit, p.required_from, p.start_offset, p.next_offset, p.held, p.pending,
           p.applied, p.counts
    FROM {schema}.current_progress p WHERE p.subscription_id = p_subscription_id
$$;

-- The recorded gaps of a topic.
CREATE OR REPLACE FUNCTION {schema}.gaps(p_topic_id integer) RETURNS int8multirange
LANGUAGE sql STABLE AS $$
    SELECT coalesce(range_agg(int8range(g.first_offset, g.last_offset, '[]')), '{}') FROM {schema}.gap g WHERE g.topic_id = p_topic_id
$$;

-- The offsets from p_first to p_last as a multirange; empty if p_first is above p_last.
CREATE OR REPLACE FUNCTION {schema}.span(p_first bigint, p_last bigint) RETURNS int8multirange
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_first <= p_last THEN int8multirange(int8range(p_first, p_last, '[]')) ELSE '{}' END
$$;
