-- Dedicated storage: tables of a topic's own, created ahead and dropped behind.

-- Makes a topic's storage what its row says. The topic has no messages.
CREATE FUNCTION {schema}.make_storage(p_topic_id integer) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN END $$;
