//! How often an idle feed claims, what it reads of its leases, and what happens to groups whose feed panics.

use super::*;
use crate::consumer::end;
use crate::consumer::member::Members;
use crate::consumer::runtime::Runtime;
use crate::consumer::settings::GroupSettings;
use crate::consumer::tests::plain;
use crate::consumer::tests::still::{Failing, Still};
use crate::lease_thread::LeaseThread;
use crate::observe::metrics::Registry;

/// A served group, on a store whose claims panic this often.
fn served(store: &Arc<Still>, panics: u32) -> (Arc<Runtime>, Arc<Feed>, Arc<Group>) {
    store.fails("claim", (0..panics).map(|_| Failing::Panicking));
    let of_store = Arc::clone(store) as Arc<dyn Store>;
    let runtime = Runtime::start(LeaseThread::here(), of_store, Runtime::new_owner().unwrap(), None, None);
    let (feed, group) = serve_one(store, &runtime, 1);
    (runtime, feed, group)
}

/// The only group of a topic.
fn serve_one(store: &Arc<Still>, runtime: &Arc<Runtime>, topic: i32) -> (Arc<Feed>, Arc<Group>) {
    let (feed, group) = join_one(store, runtime, topic, plain());
    runtime.serve(Arc::clone(&group));
    (feed, group)
}

/// The only group of a topic, without heartbeats.
fn join_one(
    store: &Arc<Still>,
    runtime: &Arc<Runtime>,
    topic: i32,
    settings: GroupSettings,
) -> (Arc<Feed>, Arc<Group>) {
    let mut subscription = store.subscription();
    (subscription.topic.topic_id, subscription.subscription_id) = (TopicId(topic), SubscriptionId(topic));
    let feed = runtime.feed(subscription.topic.topic_id);
    let metrics = Registry::default().group(&subscription.topic.name, &subscription.group);
    let (settler, changed) = (runtime.settler.clone(), Arc::clone(&feed.changed));
    let group = Arc::new(Group::new(subscription, settings, Members::default(), settler, changed, metrics));
    feed.join(Arc::clone(&group));
    (feed, group)
}

#[tokio::test(start_paused = true)]
async fn quiet_topics_share_a_check_for_each_safety_poll_and_hardly_claim() {
    let store = Arc::new(Still::default());
    *store.quiet.lock().unwrap() = true;
    let (runtime, _feed, _group) = served(&store, 0);
    let mut others = Vec::new();
    for topic in 2..=10 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        others.push(serve_one(&store, &runtime, topic));
    }
    tokio::time::sleep(2 * SAFETY_POLL).await;
    let before = (store.count("claim"), store.count("claimable"));
    tokio::time::sleep(100 * SAFETY_POLL).await;
    let (claims, checks) = (store.count("claim") - before.0, store.count("claimable") - before.1);
    assert!((99..=110).contains(&checks), "one for all ten: {checks}");
    assert!((40..=60).contains(&claims), "ten each in five minutes: {claims}");
    // A topic that is not quiet is claimed for at the next check.
    *store.quiet.lock().unwrap() = false;
    let before = store.count("claim");
    tokio::time::sleep(SAFETY_POLL).await;
    assert!(store.count("claim") >= before + 10);
}

#[tokio::test(start_paused = true)]
async fn a_check_that_fails_is_followed_by_a_claim() {
    let store = Arc::new(Still::default());
    *store.quiet.lock().unwrap() = true;
    let (_runtime, _feed, _group) = served(&store, 0);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = store.count("claim");
    store.fails("claimable", [Failing::With(ErrorKind::Unavailable)]);
    tokio::time::sleep(SAFETY_POLL).await;
    assert_eq!(store.count("claim"), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_feed_that_panics_is_started_again() {
    let store = Arc::new(Still::default());
    let (_runtime, _feed, group) = served(&store, PANICS_MAX - 1);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(group.serve_state.ended(), None);
    assert!(store.count("claim") > PANICS_MAX as usize, "it claims");
}

#[tokio::test(start_paused = true)]
async fn a_feed_that_panics_again_and_again_ends_its_groups_and_their_heartbeats() {
    let store = Arc::new(Still::default());
    let (_runtime, _feed, group) = served(&store, 1_000);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(group.serve_state.ended(), Some(EndReason::Panicked));
    assert_eq!(store.count("claim"), PANICS_MAX as usize, "nothing claims any more");
    let before = store.count("unjudged heartbeat");
    assert!(before > 0, "heartbeats were sent");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(store.count("unjudged heartbeat"), before, "and no heartbeat is sent");
}

/// Otherwise the owner departs first, and what the claim brings stays leased until its deadline.
#[tokio::test(start_paused = true)]
async fn a_group_that_ends_without_grace_releases_what_a_claim_under_way_brings() {
    let store = Arc::new(Still::default());
    store.slow.lock().unwrap().insert("claim", Duration::from_secs(2));
    let (runtime, _feed, group) = served(&store, 0);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.count("claim"), 1, "it is under way");
    store.hand_out(1);
    end(&runtime, &group, Instant::now()).await.unwrap();
    let asked = store.asked.lock().unwrap();
    let verbs: Vec<_> = asked.iter().map(|(_, verb)| *verb).collect();
    let position = |verb| verbs.iter().position(|asked| *asked == verb);
    assert!(position("settle").is_some_and(|settled| Some(settled) < position("depart")), "{verbs:?}");
}

/// Otherwise the small leases of a claim would be read, and the large one released, claim after claim.
#[tokio::test(start_paused = true)]
async fn the_first_lease_of_a_claim_is_read_though_it_is_large_and_the_others_fit() {
    let store = Arc::new(Still::default());
    let of_store = Arc::clone(&store) as Arc<dyn Store>;
    let runtime = Runtime::start(LeaseThread::here(), of_store, Runtime::new_owner().unwrap(), None, None);
    let (feed, group) = join_one(&store, &runtime, 1, GroupSettings { buffer_bytes_max: 10_000, ..plain() });
    let groups = HashMap::from([(group.subscription.subscription_id, &group)]);
    store.sizes.lock().unwrap().extend([(1, 1_000_000), (7, 1_000_000)]);
    // Apart from each other: each is a read of its own.
    [1, 3, 5, 7].into_iter().for_each(|offset| store.hand_out(offset));
    let leases: Vec<Lease> = store.leases.lock().unwrap().drain(..).collect();
    feed.read_missing(&leases, &groups).await.unwrap();
    let pages = feed.pages.lock().unwrap();
    let read: Vec<i64> = leases
        .iter()
        .map(|lease| lease.range)
        .filter(|range| pages.prefix(*range).is_some())
        .map(|range| range.first.0)
        .collect();
    assert_eq!(read, [1, 3, 5], "of the large ones only the first");
}
