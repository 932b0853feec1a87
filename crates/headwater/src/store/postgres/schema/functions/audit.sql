-- Audit entries: append-only, also for the owner of the schema.

-- Adds an audit entry, in the transaction of the change it describes.
CREATE OR REPLACE FUNCTION {schema}.note_act(
    p_actor text, p_act text, p_topic text, p_group text, p_detail jsonb, p_now timestamptz
) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO {schema}.audit (acted_at, actor, act, topic, group_name, detail)
    VALUES (coalesce(p_now, clock_timestamp()), p_actor, p_act, p_topic, p_group, p_detail)
$$;

-- Append-only, also for the owner of the schema.
CREATE OR REPLACE FUNCTION {schema}.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = 'invalid change: the audit is append-only';
END $$;
CREATE OR REPLACE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.audit
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_change();
