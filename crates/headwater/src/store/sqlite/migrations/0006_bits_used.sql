-- Which bits of reference counting a topic has ever given out since it was last without records: one that was never used
-- is free without a look at the records. Of topics that count already it is not known: all of them, until somebody looks.
ALTER TABLE headwater_topic ADD COLUMN bits_used INTEGER NOT NULL DEFAULT 0;
UPDATE headwater_topic SET bits_used = -1 WHERE tracking = 'reference_counting';
