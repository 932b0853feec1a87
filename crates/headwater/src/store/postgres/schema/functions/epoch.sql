-- Epochs: see the table.

-- Begins an epoch unless there is one. Called for every new session of a store, so before anything is published through it,
-- and by a claim that finds none. The lock does not block readers; if many sessions call at once, one begins the epoch and the
-- others find it.
CREATE OR REPLACE FUNCTION {schema}.begin_epoch(OUT epoch bigint, OUT cause text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_copied boolean;
    v_timeline text := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
    v_before text;
BEGIN
    FOR i IN 1..2 LOOP
        SELECT e.epoch INTO epoch FROM {schema}.epoch e WHERE e.made_by = e.xmin;
        IF FOUND THEN
            SELECT h.cause INTO cause FROM {schema}.epoch_history h WHERE h.epoch = begin_epoch.epoch;
            RETURN;
        END IF;
        -- The commit does not wait for a standby: there may be none yet, and a lost epoch is begun again.
        PERFORM set_config('synchronous_commit', 'local', true);
        LOCK TABLE {schema}.epoch IN EXCLUSIVE MODE;
    END LOOP;
    v_copied := EXISTS (SELECT FROM {schema}.epoch);
    SELECT h.timeline INTO v_before FROM {schema}.epoch_history h ORDER BY h.began_at DESC LIMIT 1;
    cause := CASE WHEN v_before IS NULL THEN 'created' WHEN v_copied THEN 'restore'
                  WHEN v_before <> v_timeline THEN 'failover' ELSE 'crash' END;
    epoch := {schema}.new_token();
    DELETE FROM {schema}.epoch;
    INSERT INTO {schema}.epoch (epoch) VALUES (begin_epoch.epoch);
    UPDATE {schema}.epoch e SET made_by = e.xmin;
    INSERT INTO {schema}.epoch_history (epoch, began_at, cause, timeline)
    VALUES (begin_epoch.epoch, clock_timestamp(), begin_epoch.cause, v_timeline);
    IF cause = 'created' THEN
        PERFORM setval('{schema}.offsets_timeline', ('x' || v_timeline)::bit(32)::bigint);
    ELSE
        IF cause = 'restore' THEN
            -- A dump has the value and the snapshots of another server, or of an earlier time.
            PERFORM setval('{schema}.offsets_timeline', 1, false);
            UPDATE {schema}.head h SET gaps_seen = NULL, empty_seen = NULL WHERE h.gaps_seen IS NOT NULL OR h.empty_seen IS NOT NULL;
        END IF;
        PERFORM {schema}.pass_lost_offsets();
    END IF;
END $$;
