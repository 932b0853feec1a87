-- Records of reference counting.

-- Gives a subscription that begins to count its place in the records: a bit, where it is required from, and a backfill for
-- what is there already. Runs under the lock of the extent; nothing to do in offset watermark but to show the backfill.
CREATE FUNCTION {schema}.begin_accounting(p_subscription_id integer, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN END $$;

-- Marks a subscription that counts no longer for release from pending records. Runs under the lock of the extent.
CREATE FUNCTION {schema}.end_accounting(p_subscription_id integer) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN END $$;

-- Changes how a topic records completion. Runs under the lock of the extent.
CREATE FUNCTION {schema}.change_tracking(p_topic_id integer, p_target text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN UPDATE {schema}.topic t SET tracking = p_target WHERE t.topic_id = p_topic_id; END $$;
