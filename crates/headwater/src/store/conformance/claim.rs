//! Claiming: ranges in order, no offset handed out twice, groups independent of each other.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::case::{
    Case, DEADLINE, Scene, failed, offsets_of, owner, pause, payloads_of, range, retry, spanned,
};
use crate::error::ErrorKind;
use crate::lease::{ClaimRequest, Want};
use crate::message::{Headers, NewMessage};
use crate::settle::Outcome;
use crate::store::FetchBound;
use crate::subscription::{Start, SubscriptionId};
use crate::topic::TopicSettings;

/// The fields of a first hand-out.
pub async fn claims_go_through_the_log_in_order(case: &Case) {
    let scene = case.queue().await;
    scene.publish(10).await;
    let mut tokens = Vec::new();
    for expected in [range(1, 4), range(5, 8), range(9, 10)] {
        let lease = scene.claim_one("a", 4).await;
        assert_eq!(lease.range, expected);
        assert_eq!(lease.subscription_id, scene.subscription.subscription_id);
        assert_eq!(lease.topic_id, scene.subscription.topic.topic_id);
        assert_eq!((lease.attempt, lease.suspect, lease.lane), (1, false, None));
        assert_eq!(lease.deadline, Some(case.now() + Duration::from_secs(300)));
        assert_eq!(lease.blocked_keys, Vec::<String>::new());
        assert_eq!(scene.fetch(&lease).await.len() as u64, expected.span());
        tokens.push(lease.token);
    }
    assert!(tokens[0] < tokens[1] && tokens[1] < tokens[2], "tokens rise: {tokens:?}");
    scene.claim_nothing("a", 4).await;
}

/// There is nothing to hand out, and nothing that would become due with time.
pub async fn an_empty_topic_gives_nothing(case: &Case) {
    let scene = case.queue().await;
    let claimed = scene.claimed("a", 10).await;
    assert_eq!((claimed.leases, claimed.recheck_after), (vec![], None));
}

/// Many members of one group claim through two stores: every message is handed out once.
pub async fn competing_members_never_share(case: &Case) {
    const MESSAGES: usize = 1_000;
    let first = case.queue().await;
    let second = first.through(&case.open().await);
    for _ in 0..10 {
        first.publish(MESSAGES / 10).await;
    }
    let members: Vec<_> = (0..16)
        .map(|member| {
            let scene = if member % 2 == 0 { first.clone() } else { second.clone() };
            tokio::spawn(async move {
                let until = Instant::now() + DEADLINE;
                let mut got = Vec::new();
                while scene.status().await.floor.0 < 1_000 && Instant::now() < until {
                    for lease in scene.claim(&format!("member-{member}"), 7).await {
                        assert_eq!(lease.attempt, 1);
                        got.extend(offsets_of(&scene.fetch(&lease).await));
                        scene.ack(&lease).await;
                    }
                }
                got
            })
        })
        .collect();
    let (mut once, mut count) = (HashSet::new(), 0);
    for member in members {
        for offset in member.await.unwrap() {
            assert!(once.insert(offset), "offset {offset} was handed to two members");
            count += 1;
        }
    }
    assert_eq!(count, MESSAGES);
    let status = first.status().await;
    assert_eq!((status.floor.0, status.leased, status.reassigned), (1_000, 0, 0));
}

/// What one group holds or has done hides nothing from another.
pub async fn groups_are_isolated(case: &Case) {
    let holds = case.pub_sub().await;
    let done = holds.subscribe("done", Start::Beginning).await;
    let fails = holds.subscribe("fails", Start::Beginning).await;
    let reads = holds.subscribe("reads", Start::Beginning).await;
    holds.publish(6).await;
    let held = holds.claim_one("a", 6).await;
    assert_eq!(done.drain("a").await.len(), 6);
    let failing = fails.claim_one("a", 6).await;
    fails.settle_each(&failing, vec![((1, 6), retry(60_000, "down"))]).await.unwrap();

    assert_eq!(offsets_of(&reads.drain("a").await), [1, 2, 3, 4, 5, 6]);
    assert_eq!(holds.status().await.leased, 1);
    assert_eq!(fails.status().await.waiting, 1);
    holds.ack(&held).await;
    case.advance_ms(60_000);
    let again = fails.claim("a", 6).await;
    assert_eq!(spanned(&again), [1, 2, 3, 4, 5, 6]);
}

/// A group that subscribes later reads what is still stored.
pub async fn a_new_group_reads_history(case: &Case) {
    let old = case.pub_sub().await;
    old.publish(5).await;
    assert_eq!(old.drain("a").await.len(), 5);
    let new = old.subscribe("new", Start::Beginning).await;
    assert_eq!(payloads_of(&new.drain("a").await), ["1", "2", "3", "4", "5"]);
    old.claim_nothing("a", 10).await;
}

/// One call claims for many subscriptions; each want has its own limit and its own lease time.
pub async fn one_claim_serves_many_subscriptions(case: &Case) {
    let store = case.open().await;
    let mut scenes = Vec::new();
    for name in ["a", "b", "c"] {
        let scene = Scene::new(Arc::clone(&store), name, TopicSettings::pub_sub()).await;
        scenes.push(scene.subscribe("second", Start::Beginning).await);
        scenes.push(scene);
    }
    scenes[0].publish(10).await;
    scenes[2].publish(3).await;
    let limits = [2, 5, 1, 50, 7, 7];
    let wants: Vec<_> = scenes
        .iter()
        .zip(limits)
        .map(|(scene, messages_max)| Want {
            lease: Some(Duration::from_secs(u64::from(messages_max))),
            ..Want::new(scene.subscription.subscription_id, messages_max)
        })
        .collect();
    let claimed = store.claim(&ClaimRequest { owner: owner("a"), wants }).await.unwrap();
    for (index, expected) in
        [vec![1, 2], vec![1, 2, 3, 4, 5], vec![1], vec![1, 2, 3], vec![], vec![]].into_iter().enumerate()
    {
        let id = scenes[index].subscription.subscription_id;
        let leases: Vec<_> =
            claimed.leases.iter().filter(|lease| lease.subscription_id == id).cloned().collect();
        assert_eq!(spanned(&leases), expected, "want number {index}");
        for lease in &leases {
            let seconds = u64::from(limits[index]);
            assert_eq!(lease.deadline, Some(case.now() + Duration::from_secs(seconds)));
            assert_eq!(lease.topic_id, scenes[index].subscription.topic.topic_id);
        }
    }
    let by_subscription = claimed.leases.is_sorted_by_key(|lease| lease.subscription_id);
    assert!(by_subscription, "leases are sorted by subscription");
}

/// One call serves groups in every state: with new messages alone, with a due retry, limited, done, and paused.
pub async fn one_claim_serves_groups_in_every_state(case: &Case) {
    let plain = case.pub_sub().await;
    let mut groups = vec![plain.clone()];
    for name in ["retrying", "limited", "done", "paused", "plain too"] {
        groups.push(plain.subscribe(name, Start::Beginning).await);
    }
    plain.publish(4).await;
    let first = groups[1].claim_one("a", 2).await;
    groups[1].settle_each(&first, vec![((1, 1), Outcome::Ack), ((2, 2), retry(0, "busy"))]).await.unwrap();
    groups[3].drain("a").await;
    plain.store.pause(&plain.topic, &groups[4].subscription.group, None).await.unwrap();

    let mut wants: Vec<_> = groups.iter().map(|scene| scene.want(3)).collect();
    wants[2].limits.in_flight_max = Some(1);
    wants.reverse();
    let claimed = plain.store.claim(&ClaimRequest { owner: owner("b"), wants }).await.unwrap();
    let of = |scene: &Scene| {
        let id = scene.subscription.subscription_id;
        claimed.leases.iter().filter(|lease| lease.subscription_id == id).cloned().collect::<Vec<_>>()
    };
    let spans: Vec<_> = groups.iter().map(|scene| spanned(&of(scene))).collect();
    assert_eq!(spans, [vec![1, 2, 3], vec![2, 3, 4], vec![1], vec![], vec![], vec![1, 2, 3]]);
    assert!(claimed.leases.is_sorted_by_key(|lease| lease.subscription_id), "sorted by subscription");
    let inactive: Vec<_> = claimed.inactive.iter().map(|(id, _)| *id).collect();
    assert_eq!(inactive, [groups[4].subscription.subscription_id]);
    for scene in &groups {
        for lease in of(scene) {
            scene.ack(&lease).await;
        }
    }
    let rest = async |scene: &Scene| offsets_of(&scene.drain("c").await);
    assert_eq!((rest(&groups[0]).await, rest(&groups[1]).await), (vec![4], vec![]));
    assert_eq!((rest(&groups[2]).await, rest(&groups[5]).await), (vec![2, 3, 4], vec![4]));
}

/// A want may choose its own lease; zero means no deadline.
pub async fn a_want_chooses_its_lease(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    let short = scene.claimed_for("a", 1, Some(Duration::from_millis(1_234))).await.leases;
    assert_eq!(short[0].deadline, Some(case.now() + Duration::from_millis(1_234)));
    let for_ever = scene.claimed_for("a", 1, Some(Duration::ZERO)).await.leases;
    assert_eq!(for_ever[0].deadline, None);
    assert_eq!(for_ever[0].range, range(2, 2));
}

/// A subscription that does not exist is an error, and the rest of the call changed nothing.
pub async fn claiming_for_an_unknown_subscription_hands_out_nothing(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    let want = |id| Want::new(id, 10);
    let wants = vec![want(scene.subscription.subscription_id), want(SubscriptionId(999_999))];
    let answer = scene.store.claim(&ClaimRequest { owner: owner("a"), wants }).await;
    failed(answer, ErrorKind::NoSuchSubscription);
    assert_eq!(scene.claim_one("b", 10).await.range, range(1, 3));
}

/// A claim outside its limits is refused with the field's name.
pub async fn a_claim_outside_its_limits_is_refused(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    let subscription_id = scene.subscription.subscription_id;
    let want = |messages_max, lease| Want { lease, ..Want::new(subscription_id, messages_max) };
    let year = Duration::from_secs(366 * 24 * 3600 + 1);
    for (wants, field) in [
        (vec![want(0, None)], "messages_max"),
        (vec![want(100_001, None)], "messages_max"),
        (vec![want(1, Some(year))], "lease"),
        (vec![want(1, None); 1_001], "wants"),
    ] {
        let answer = scene.store.claim(&ClaimRequest { owner: owner("a"), wants }).await;
        let error = failed(answer, ErrorKind::InvalidInput);
        assert!(error.to_string().contains(field), "{error}");
    }
    let nothing = ClaimRequest { owner: owner("a"), wants: vec![] };
    assert_eq!(scene.store.claim(&nothing).await.unwrap().leases, []);
    assert_eq!(scene.claim_one("a", 100_000).await.range, range(1, 1));
}

/// Fetching only reads: it may be repeated, by any process, and leaves out offsets without a message.
pub async fn fetch_reads_stored_messages(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    for _ in 0..2 {
        assert_eq!(offsets_of(&scene.fetch_range(1, 100).await), [1, 2, 3]);
    }
    assert_eq!(offsets_of(&scene.fetch_range(2, 2).await), [2]);
    assert_eq!(scene.fetch_range(4, 1_000_000).await, []);
    assert_eq!(scene.drain("a").await.len(), 3);
    assert_eq!(offsets_of(&scene.fetch_range(1, 3).await), [1, 2, 3]);
}

/// A fetch reads no more bytes than allowed, from the first offset on, and returns what it left: in steps every
/// message is read once and whole, however large it is.
pub async fn fetch_reads_as_much_as_fits(case: &Case) {
    const MIB: usize = 1024 * 1024;
    let store = case.open().await;
    let settings = TopicSettings { payload_bytes_max: 16 * MIB, ..TopicSettings::default() };
    let scene = Scene::new(store, "sizes", settings).await;
    // Below and above what is read with its row, and above what one query reads.
    let sizes = [10, 300, 9_000, 70_000, 3 * MIB, 2 * MIB, 1, 9 * MIB + 1, 0, MIB];
    let payload = |at: usize, size: usize| (0..size).map(|byte| (byte * 31 + at) as u8).collect::<Vec<u8>>();
    // The fourth has the maximum of headers, the sixth one that compresses well, the ninth a small one.
    let header_bytes = |at: usize| [0, 0, 0, 16_000, 0, 9_000, 0, 0, 10, 0][at];
    let headers = |at: usize| {
        let value = |n: usize| match at {
            3 => (0..header_bytes(at)).map(|byte| char::from(b' ' + (byte * n * 31 % 89) as u8)).collect(),
            _ => "x".repeat(header_bytes(at)),
        };
        let count = if at == 3 { 128 } else { usize::from(header_bytes(at) > 0) };
        (0..count).map(|n| (format!("header-{n}"), value(n))).collect::<Headers>()
    };
    for (at, size) in sizes.iter().enumerate() {
        let mut message = NewMessage::new(payload(at, *size));
        message.headers = headers(at);
        scene.publish_all(&[message]).await;
    }
    scene.store.advance_heads().await.unwrap();
    let topic = scene.subscription.topic.topic_id;
    let fetch = async |first, bound| scene.store.fetch_within(topic, range(first, 10), bound).await.unwrap();

    let fetched = fetch(1, FetchBound::strict(100_000)).await;
    assert_eq!(offsets_of(&fetched.messages), [1, 2, 3], "headers count");
    assert_eq!(fetched.left, Some(range(4, 10)));
    assert_eq!(fetched.read_of(range(1, 10)), Some(range(1, 3)));
    let nothing = fetch(5, FetchBound::strict(100_000)).await;
    assert_eq!((nothing.messages.len(), nothing.left), (0, Some(range(5, 10))));
    assert_eq!(nothing.read_of(range(5, 10)), None);
    let one = fetch(5, FetchBound::at_least_one(0)).await;
    assert_eq!((offsets_of(&one.messages), one.left), (vec![5], Some(range(6, 10))));

    for bytes_max in [0, 5_000, MIB, 6 * MIB, usize::MAX] {
        let (mut next, mut read) = (Some(1), Vec::new());
        while let Some(first) = next {
            let fetched = fetch(first, FetchBound::at_least_one(bytes_max)).await;
            let bytes: usize = fetched.messages.iter().map(crate::Message::weight).sum();
            assert!(bytes <= bytes_max || fetched.messages.len() == 1, "{bytes} of {bytes_max}");
            read.extend(fetched.messages);
            next = fetched.left.map(|left| left.first.0);
        }
        assert!(offsets_of(&read).into_iter().eq(1..=10), "each once: {bytes_max}");
        for (at, message) in read.iter().enumerate() {
            assert!(message.payload == payload(at, sizes[at]), "offset {} as published", message.offset);
            assert!(message.headers == headers(at), "offset {} as published", message.offset);
        }
    }
    // Exactly as many small messages as fit.
    scene.publish_all(&vec![NewMessage::new(""); 40]).await;
    let each = crate::message::MESSAGE_BYTES;
    for count in [1, 10, 39] {
        let bound = FetchBound::strict(count * each + each / 2);
        let fetched = scene.store.fetch_within(topic, range(11, 50), bound).await.unwrap();
        let last = 10 + count as i64;
        assert!(offsets_of(&fetched.messages).into_iter().eq(11..=last), "{count} of 40");
        assert_eq!(fetched.left, Some(range(last + 1, 50)));
    }
}

/// The widest possible ranges touch no message of another topic.
pub async fn the_widest_ranges_stay_in_their_topic(case: &Case) {
    let store = case.open().await;
    let mut scenes = Vec::new();
    for name in ["a", "b", "c"] {
        let scene = Scene::new(Arc::clone(&store), name, TopicSettings::default()).await;
        scene.publish_all(&[NewMessage::new(name), NewMessage::new(name)]).await;
        scenes.push(scene);
    }
    for scene in &scenes {
        let name = scene.topic.as_str();
        for (first, last) in [(1, i64::MAX), (i64::MIN, i64::MAX), (0, 2), (-1_000_000_000_000, 2)] {
            let found = scene.fetch_range(first, last).await;
            assert_eq!(payloads_of(&found), [name, name], "{first} to {last}");
        }
        assert_eq!(scene.fetch_range(3, i64::MAX).await, []);
        assert_eq!(scene.fetch_range(i64::MIN, 0).await, []);
        assert_eq!(scene.fetch_range(i64::MAX, i64::MAX).await, []);
    }
    let lease = scenes[1].claim_one("w", 2).await;
    for (first, last) in [(1, i64::MAX), (i64::MIN, 2), (i64::MAX, i64::MAX), (0, 0)] {
        let answer = scenes[1].settle_each(&lease, vec![((first, last), crate::store::Outcome::Ack)]).await;
        failed(answer, ErrorKind::LeaseLost);
    }
    scenes[1].ack(&lease).await;
    assert_eq!(scenes[0].drain("w").await.len() + scenes[2].drain("w").await.len(), 4);
}

/// A subscription that is named twice in one call still hands out every offset once.
pub async fn a_subscription_wanted_twice_shares_nothing(case: &Case) {
    let scene = case.queue().await;
    scene.publish(10).await;
    let subscription_id = scene.subscription.subscription_id;
    let wants = vec![Want::new(subscription_id, 3); 2];
    let claimed = scene.store.claim(&ClaimRequest { owner: owner("a"), wants }).await.unwrap();
    let offsets = spanned(&claimed.leases);
    assert!(offsets.len() <= 6, "more than was wanted: {offsets:?}");
    let rest = scene.drain("b").await;
    let mut all: Vec<_> = offsets.into_iter().chain(offsets_of(&rest)).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(1..=10), "every offset once");
}

/// A large backlog is claimed as one range, and a large range can be fetched.
pub async fn a_large_range_is_one_lease(case: &Case) {
    let scene = case.queue().await;
    for _ in 0..3 {
        scene.publish(7_000).await;
    }
    let until = Instant::now() + DEADLINE;
    while scene.topic_status().await.head.0 < 21_000 && Instant::now() < until {
        pause().await;
    }
    let lease = scene.claim_one("a", 100_000).await;
    assert_eq!(lease.range, range(1, 21_000));
    let messages = scene.fetch(&lease).await;
    assert!(offsets_of(&messages).into_iter().eq(1..=21_000), "all offsets in order");
    scene.ack(&lease).await;
    assert_eq!(scene.status().await.floor.0, 21_000);
}

/// The status after each step.
pub async fn status_follows_every_step(case: &Case) {
    let scene = case.queue().await;
    let numbers = async || {
        let s = scene.status().await;
        (s.next.0, s.floor.0, s.leased, s.waiting, s.dead_letters)
    };
    assert_eq!(numbers().await, (1, 0, 0, 0, 0));
    scene.publish(9).await;
    assert_eq!(numbers().await, (1, 0, 0, 0, 0));
    let first = scene.claim_one("a", 3).await;
    let second = scene.claim_one("a", 3).await;
    assert_eq!(numbers().await, (7, 0, 2, 0, 0));
    scene.ack(&second).await;
    assert_eq!(numbers().await, (7, 0, 1, 0, 0));
    let parts = vec![((1, 1), crate::store::Outcome::Ack), ((2, 2), retry(1_000, "later"))];
    scene.settle_each(&first, parts).await.unwrap();
    assert_eq!(numbers().await, (7, 1, 1, 1, 0));
    scene.settle_each(&first, vec![((3, 3), super::case::bury("no"))]).await.unwrap();
    assert_eq!(numbers().await, (7, 1, 0, 1, 1));
    case.advance_ms(1_000);
    let again = scene.claim("a", 1).await;
    assert_eq!(spanned(&again), [2]);
    scene.ack(&again[0]).await;
    assert_eq!(numbers().await, (7, 6, 0, 0, 1));
    let topic = scene.topic_status().await;
    assert_eq!((topic.head.0, topic.gaps, topic.scheduled, topic.subscriptions), (9, 0, 0, 1));
}

/// A message published while a group's lease is outstanding goes to the next claim.
pub async fn a_lease_out_does_not_hold_up_new_messages(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    let _held = scene.claim_one("a", 10).await;
    scene.publish_all(&[NewMessage::new("new")]).await;
    let lease = scene.claim_one("b", 10).await;
    assert_eq!(payloads_of(&scene.fetch(&lease).await), ["new"]);
}
