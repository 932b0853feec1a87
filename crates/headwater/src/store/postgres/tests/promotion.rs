//! Due scheduled messages are promoted into the log with a budget in bytes, not only in messages.

use super::*;
use crate::clock::ManualClock;

const MIB: usize = 1024 * 1024;

fn large() -> TopicSettings {
    TopicSettings { payload_bytes_max: 32 * MIB, ..TopicSettings::pub_sub() }
}

/// Promoting many large messages in one statement would exceed its timeout, and none would ever be delivered.
#[tokio::test]
async fn large_delayed_messages_are_promoted_by_bytes_and_all_come() {
    let Some(scene) = Scene::new() else { return };
    let clock = ManualClock::at(jiff::Timestamp::now());
    let store = scene.open_at(&clock).await;
    store.create_topic(&orders(), &large()).await.unwrap();
    let group = GroupName::new("a").unwrap();
    let subscription = store.subscribe(&orders(), &group, Start::Beginning).await.unwrap();
    let due = clock.now() + Duration::from_secs(1);
    let message = |n: usize, bytes: usize| {
        NewMessage::new(vec![b'x'; bytes])
            .key(n.to_string())
            .deliver_at(due + Duration::from_millis(n as u64))
    };
    // The first message alone exceeds the budget of 16 MB.
    store.publish(&orders(), &[message(0, 17 * MIB)]).await.unwrap();
    for n in 1..=24 {
        store.publish(&orders(), &[message(n, MIB)]).await.unwrap();
    }
    clock.advance(Duration::from_secs(2));
    let scheduled = async || store.topics().await.unwrap()[0].scheduled;
    let round = async || {
        let done = store.advance_heads().await.unwrap();
        (done.promoted, done.more)
    };
    assert_eq!(round().await, (1, true), "always at least one");
    assert_eq!(round().await, (15, true), "as many as the budget allows");
    assert_eq!(scheduled().await, 9);
    let mut keys = Vec::new();
    for _ in 0..10 {
        for lease in store.claim(&request(&subscription)).await.unwrap().leases {
            let messages = store.fetch(lease.topic_id, lease.range).await.unwrap();
            keys.extend(messages.iter().map(|message| message.key.clone().unwrap()));
            store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
        }
    }
    assert_eq!(keys, (0..=24).map(|n| n.to_string()).collect::<Vec<_>>(), "all of them, in order");
    assert_eq!(round().await, (0, false));
    scene.drop().await;
}

/// A claim for many topics has one budget for all of them.
#[tokio::test]
async fn a_claim_for_many_topics_promotes_within_one_budget() {
    let Some(scene) = Scene::new() else { return };
    let clock = ManualClock::at(jiff::Timestamp::now());
    let store = scene.open_at(&clock).await;
    let mut wants = Vec::new();
    for n in 0..3 {
        let topic = TopicName::new(format!("topic-{n}")).unwrap();
        store.create_topic(&topic, &large()).await.unwrap();
        let group = GroupName::new("a").unwrap();
        let subscription = store.subscribe(&topic, &group, Start::Beginning).await.unwrap();
        wants.push(Want::new(subscription.subscription_id, 10));
        let due = clock.now() + Duration::from_secs(1);
        let batch = vec![NewMessage::new(vec![b'x'; 6 * MIB]).deliver_at(due); 2];
        store.publish(&topic, &batch).await.unwrap();
    }
    clock.advance(Duration::from_secs(1));
    let request = ClaimRequest { owner: Owner::new("tester").unwrap(), wants };
    let scheduled = async || store.topics().await.unwrap().iter().map(|topic| topic.scheduled).sum::<u64>();
    store.claim(&request).await.unwrap();
    // Two of the first topic, and one of the second: at least one is promoted while some budget is left.
    assert_eq!(scheduled().await, 3);
    store.claim(&request).await.unwrap();
    assert_eq!(scheduled().await, 1);
    store.claim(&request).await.unwrap();
    assert_eq!(scheduled().await, 0);
    scene.drop().await;
}

/// A statement that promotes too much for its timeout is rolled back; repeated with the same budget it would be for ever. Here
/// the schedule refuses, as a timeout does, the 201st message.
#[tokio::test]
async fn a_promotion_that_times_out_is_repeated_with_fewer_messages() {
    let Some(scene) = Scene::new() else { return };
    let clock = ManualClock::at(jiff::Timestamp::now());
    let store = scene.open_at(&clock).await;
    let subscription = subscribed(&store).await;
    let due = clock.now() + Duration::from_secs(1);
    store.publish(&orders(), &vec![NewMessage::new("x").deliver_at(due); 600]).await.unwrap();
    let slow = scene.sql(
        "CREATE FUNCTION {schema}.time_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF (SELECT count(*) FROM {schema}.schedule) < 400 THEN
                 RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = '57014';
             END IF;
             RETURN NULL;
         END $$;
         CREATE TRIGGER time_out AFTER DELETE ON {schema}.schedule FOR EACH ROW EXECUTE FUNCTION {schema}.time_out()",
    );
    let client = scene.client().await;
    client.batch_execute(&slow).await.unwrap();
    clock.advance(Duration::from_secs(2));
    let promoted = async || 600 - store.topics().await.unwrap()[0].scheduled;

    // 1,000 and 500 messages are too many, for a claim and for maintenance; 250 are too, and then 125 are not.
    for _ in 0..3 {
        let refused = match store.promotion.messages_max() {
            500 => store.advance_heads().await.unwrap_err(),
            _ => store.claim(&request(&subscription)).await.unwrap_err(),
        };
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        assert_eq!(promoted().await, 0, "rolled back");
    }
    assert_eq!(store.promotion.messages_max(), 125);
    store.claim(&request(&subscription)).await.unwrap();
    assert_eq!(promoted().await, 125);

    client.batch_execute(&scene.sql("DROP TRIGGER time_out ON {schema}.schedule")).await.unwrap();
    assert_eq!(
        store.advance_heads().await.unwrap().promoted,
        125,
        "the budget is kept until a round succeeds"
    );
    assert_eq!(store.promotion.messages_max(), 250);
    scene.drop().await;
}
