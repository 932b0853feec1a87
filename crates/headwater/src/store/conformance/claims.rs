//! Claims for clients that live elsewhere: leases that belong to no process, settled by ticket.

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;

use super::case::Case;
use super::log_capture;
use crate::consumer::{ClaimOptions, ClaimedMessage, Claims, Holder, Settled, Ticket};
use crate::error::ErrorKind;
use crate::headwater::Headwater;
use crate::message::NewMessage;
use crate::settle::Verdict;
use crate::subscription::Start;

const MINUTE: Duration = Duration::from_secs(60);

/// A process on the case's store: its clock is the case's, so that nothing runs by itself.
async fn process(case: &Case) -> Headwater {
    Headwater::open_with(&case.harness().url(), case.options()).await.expect("opens")
}

/// A topic with a group and this many messages, `0`, `1` and so on.
async fn with_messages(case: &Case, count: u32) -> (Headwater, Claims) {
    let headwater = process(case).await;
    headwater.topic("orders").create().await.expect("a topic");
    headwater.groups("orders").subscribe("email", Start::Beginning).await.expect("a group");
    let messages: Vec<NewMessage> = (0..count).map(|n| NewMessage::new(n.to_string())).collect();
    headwater.producer("orders").send_batch(&messages).await.expect("published");
    let claims = headwater.claims("orders", "email").await.expect("claims");
    (headwater, claims)
}

fn offsets(claimed: &[ClaimedMessage]) -> Vec<i64> {
    claimed.iter().map(|one| one.message.offset.0).collect()
}

async fn claim(claims: &Claims, max: u32) -> Vec<ClaimedMessage> {
    claims.claim(Holder::new(), &ClaimOptions::at_most(max)).await.expect("claimed")
}

async fn settle(claims: &Claims, claimed: &[ClaimedMessage], verdict: &Verdict) -> Vec<Settled> {
    let verdicts: Vec<_> = claimed.iter().map(|one| (one.ticket.clone(), verdict.clone())).collect();
    claims.settle(&verdicts).await.expect("answered")
}

/// What a client gets is settled through another process, by its text, after the first one has closed.
pub async fn a_ticket_is_settled_by_another_process(case: &Case) {
    let (first, claims) = with_messages(case, 3).await;
    let texts: Vec<String> = claim(&claims, 10).await.iter().map(|one| one.ticket.to_string()).collect();
    first.close().await.expect("closed");
    let second = process(case).await;
    let claims = second.claims("orders", "email").await.expect("claims");
    assert_eq!(claim(&claims, 10).await.len(), 0, "the leases last");
    let tickets: Vec<Ticket> = texts.iter().map(|text| text.parse().expect("a ticket")).collect();
    assert!(claims.extend(&tickets, Some(MINUTE * 90)).await.expect("answered").iter().all(Option::is_some));
    let verdicts: Vec<_> = tickets.into_iter().map(|ticket| (ticket, Verdict::Done)).collect();
    assert_eq!(claims.settle(&verdicts).await.expect("answered"), [Settled::Settled; 3]);
    let groups = second.groups("orders");
    assert_eq!(groups.get("email").await.expect("a group").status.lag, 0);
    assert_eq!(groups.outstanding("email", 10).await.expect("ranges"), []);
    second.close().await.expect("closed");
}

/// A lease ends at its deadline and not before, whichever owner finds its holder silent; then its tickets are lost, and its messages are handed out again.
pub async fn a_lease_of_a_client_ends_at_its_deadline(case: &Case) {
    let (headwater, claims) = with_messages(case, 2).await;
    let options = ClaimOptions { lease: Some(MINUTE), ..ClaimOptions::at_most(2) };
    let first = claims.claim(Holder::new(), &options).await.expect("claimed");
    assert_eq!(first[0].lease_until, case.now() + MINUTE);
    case.advance(MINUTE - Duration::from_millis(1));
    // Another owner that judges the silence of others.
    let store = case.open().await;
    let judge = crate::name::Owner::new("judge").expect("a name");
    store.heartbeat(&judge, Some(Duration::from_secs(1)), &[]).await.expect("sent");
    assert_eq!(claim(&claims, 2).await.len(), 0);
    case.advance(Duration::from_millis(1));
    assert_eq!(settle(&claims, &first, &Verdict::Done).await, [Settled::Lost; 2]);
    let tickets: Vec<Ticket> = first.iter().map(|one| one.ticket.clone()).collect();
    assert_eq!(claims.extend(&tickets, None).await.expect("answered"), [None, None]);
    let mut again = Vec::new();
    while again.len() < 2 {
        again.extend(claim(&claims, 2).await);
    }
    assert!(again.iter().all(|one| one.ticket.attempt() == 2), "a lost lease is an attempt");
    assert_eq!(settle(&claims, &again, &Verdict::Done).await, [Settled::Settled; 2]);
    headwater.close().await.expect("closed");
}

/// Each message is settled for itself: done, retried, buried, released; what is settled twice is lost and costs no other its result.
pub async fn tickets_are_settled_one_by_one(case: &Case) {
    let (headwater, claims) = with_messages(case, 6).await;
    let claimed = claim(&claims, 10).await;
    assert_eq!(offsets(&claimed), [1, 2, 3, 4, 5, 6]);
    let verdict = |at: usize, verdict| (claimed[at].ticket.clone(), verdict);
    let settled = claims
        .settle(&[
            verdict(4, Verdict::Release),
            verdict(1, Verdict::RetryAfter(Duration::ZERO, "again".into())),
            verdict(0, Verdict::Done),
            verdict(2, Verdict::Bury("broken".into())),
            verdict(0, Verdict::Bury("a second verdict".into())),
        ])
        .await
        .expect("answered");
    assert_eq!(
        settled,
        [Settled::Settled, Settled::Settled, Settled::Settled, Settled::Settled, Settled::Lost]
    );
    let mixed = claims
        .settle(&[verdict(0, Verdict::Done), verdict(3, Verdict::Done), verdict(2, Verdict::Done)])
        .await
        .expect("answered");
    assert_eq!(mixed, [Settled::Lost, Settled::Settled, Settled::Lost]);
    let dead = headwater.dead_letters().of("orders", "email").list(10).await.expect("dead letters");
    assert_eq!((dead.len(), dead[0].offset.0, dead[0].error.as_str()), (1, 3, "broken"));
    let mut again = Vec::new();
    while again.len() < 2 {
        again.extend(claim(&claims, 10).await);
    }
    let attempts: BTreeSet<_> =
        again.iter().map(|one| (one.message.offset.0, one.ticket.attempt())).collect();
    assert_eq!(attempts, BTreeSet::from([(2, 2), (5, 1)]), "a release counts no attempt");
    settle(&claims, &again, &Verdict::Done).await;
    assert_eq!(settle(&claims, &claimed[5..], &Verdict::Done).await, [Settled::Settled]);
    assert_eq!(headwater.groups("orders").outstanding("email", 10).await.expect("ranges"), []);
    headwater.close().await.expect("closed");
}

/// At its last attempt a message that fails becomes a dead letter. Both are logged as failures of handlers are.
pub async fn a_failed_ticket_is_buried_at_its_last_attempt(case: &Case) {
    let group = format!("email-{}", Uuid::now_v7());
    let headwater = process(case).await;
    headwater.topic("orders").max_attempts(2).create().await.expect("a topic");
    headwater.groups("orders").subscribe(&group, Start::Beginning).await.expect("a group");
    headwater.producer("orders").send(&1).await.expect("published");
    let claims = headwater.claims("orders", &group).await.expect("claims");
    for (level, line) in [("INFO", "message failed, one attempt is left"), ("WARN", "message buried")] {
        let claimed = claim(&claims, 1).await;
        assert_eq!(settle(&claims, &claimed, &Verdict::Failed("no".into())).await, [Settled::Settled]);
        let lines = log_capture::all_with(&group);
        let logged = |one: &&String| one.starts_with(level) && one.contains(line);
        assert_eq!(lines.iter().filter(logged).count(), 1, "{line}: {lines:?}");
        case.advance(MINUTE * 60);
    }
    assert_eq!(claim(&claims, 1).await.len(), 0);
    assert_eq!(headwater.dead_letters().of("orders", &group).count().await.expect("counted"), 1);
    headwater.close().await.expect("closed");
}

/// A ticket is for its own group: at another one, at a group of the same name that came later, and changed in any field that is compared it is
/// lost.
pub async fn a_ticket_fits_its_own_lease_only(case: &Case) {
    let headwater = process(case).await;
    headwater.topic("orders").pub_sub().create().await.expect("a topic");
    let groups = headwater.groups("orders");
    for group in ["email", "billing"] {
        groups.subscribe(group, Start::Beginning).await.expect("a group");
    }
    headwater.producer("orders").send(&1).await.expect("published");
    let email = headwater.claims("orders", "email").await.expect("claims");
    let billing = headwater.claims("orders", "billing").await.expect("claims");
    let (one, other) = (claim(&email, 1).await, claim(&billing, 1).await);
    assert_eq!(settle(&billing, &one, &Verdict::Done).await, [Settled::Lost]);
    assert_eq!(billing.extend(&[one[0].ticket.clone()], None).await.expect("answered"), [None]);
    // The bytes after the version are the holder's and the token's.
    let text = one[0].ticket.to_string();
    for at in 2..32 {
        let mut changed: Vec<u8> = text.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).expect("text");
        if let Ok(ticket) = changed.parse::<Ticket>() {
            assert_eq!(
                email.settle(&[(ticket, Verdict::Done)]).await.expect("answered"),
                [Settled::Lost],
                "{at}"
            );
        }
    }
    groups.cancel("email").await.expect("cancelled");
    groups.subscribe("email", Start::Beginning).await.expect("a group");
    let anew = headwater.claims("orders", "email").await.expect("claims");
    assert_eq!(settle(&anew, &one, &Verdict::Done).await, [Settled::Lost]);
    assert_eq!(settle(&billing, &other, &Verdict::Done).await, [Settled::Settled]);
    headwater.close().await.expect("closed");
}

/// In an ordered group a message that comes again takes the later ones of its key along, and nothing of the lane stays behind.
pub async fn tickets_keep_the_order_of_keys(case: &Case) {
    let headwater = process(case).await;
    headwater.topic("orders").ordered_by_key().create().await.expect("a topic");
    headwater.groups("orders").subscribe("email", Start::Beginning).await.expect("a group");
    let messages: Vec<NewMessage> =
        (0..40).map(|n| NewMessage::new(n.to_string()).key(format!("k{}", n % 4))).collect();
    headwater.producer("orders").send_batch(&messages).await.expect("published");
    let claims = headwater.claims("orders", "email").await.expect("claims");
    let mut claimed = Vec::new();
    while claimed.len() < 40 {
        let more = claim(&claims, 40).await;
        assert!(!more.is_empty(), "{} of 40", claimed.len());
        claimed.extend(more);
    }
    let of_key: Vec<ClaimedMessage> =
        claimed.iter().filter(|one| one.message.key.as_deref() == Some("k1")).cloned().collect();
    assert_eq!(of_key.len(), 10);
    // The third is released, the fifth is done out of order, the others are not handled.
    assert_eq!(settle(&claims, &of_key[..2], &Verdict::Done).await, [Settled::Settled; 2]);
    let verdicts = [(of_key[2].ticket.clone(), Verdict::Release), (of_key[4].ticket.clone(), Verdict::Done)];
    assert_eq!(claims.settle(&verdicts).await.expect("answered"), [Settled::Settled, Settled::Lost]);
    assert_eq!(settle(&claims, &of_key[3..4], &Verdict::Done).await, [Settled::Lost]);
    let others: Vec<ClaimedMessage> =
        claimed.iter().filter(|one| one.message.key.as_deref() != Some("k1")).cloned().collect();
    assert!(
        settle(&claims, &others, &Verdict::Done).await.iter().all(|settled| *settled == Settled::Settled)
    );
    let mut order = Vec::new();
    while order.len() < 8 {
        let again = claim(&claims, 3).await;
        assert!(!again.is_empty(), "{} of 8", order.len());
        order.extend(offsets(&again));
        assert!(
            settle(&claims, &again, &Verdict::Done).await.iter().all(|settled| *settled == Settled::Settled)
        );
    }
    assert_eq!(order, offsets(&of_key[2..]), "in their order, each once");
    assert_eq!(headwater.groups("orders").outstanding("email", 10).await.expect("ranges"), []);
    headwater.close().await.expect("closed");
}

/// No more messages and bytes are handed out than asked for; the rest is handed out next, and counts no attempt.
pub async fn a_claim_is_bounded_in_messages_and_bytes(case: &Case) {
    let (headwater, claims) = with_messages(case, 0).await;
    let large: Vec<NewMessage> = (0..6).map(|_| NewMessage::new(vec![7; 1_000])).collect();
    headwater.producer("orders").send_batch(&large).await.expect("published");
    let mut all = Vec::new();
    while all.len() < 6 {
        let options = ClaimOptions { bytes_max: 3_000, ..ClaimOptions::at_most(5) };
        let claimed = claims.claim(Holder::new(), &options).await.expect("claimed");
        assert!((1..=2).contains(&claimed.len()), "{}", claimed.len());
        assert!(claimed.iter().all(|one| one.ticket.attempt() == 1));
        all.extend(offsets(&claimed));
        settle(&claims, &claimed, &Verdict::Done).await;
    }
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3, 4, 5, 6]);
    for bad in
        [ClaimOptions::at_most(0), ClaimOptions { lease: Some(Duration::ZERO), ..ClaimOptions::at_most(1) }]
    {
        let error = claims.claim(Holder::new(), &bad).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    headwater.close().await.expect("closed");
}

/// A message that has expired is not handed out, and done.
pub async fn expired_messages_are_not_claimed(case: &Case) {
    let (headwater, claims) = with_messages(case, 1).await;
    headwater.producer("orders").send(NewMessage::new("late").expires_in(MINUTE)).await.expect("published");
    headwater.producer("orders").send(NewMessage::new("last")).await.expect("published");
    case.advance(MINUTE);
    let claimed = claim(&claims, 10).await;
    assert_eq!(offsets(&claimed), [1, 3]);
    assert_eq!(settle(&claims, &claimed, &Verdict::Done).await, [Settled::Settled; 2]);
    assert_eq!(headwater.groups("orders").outstanding("email", 10).await.expect("ranges"), []);
    headwater.close().await.expect("closed");
}

/// A group that does not exist is not created, a paused one gets nothing, a cancelled one is refused.
pub async fn claims_are_for_groups_that_exist(case: &Case) {
    let headwater = process(case).await;
    let missing = headwater.claims("orders", "email").await.expect_err("no topic");
    assert_eq!(missing.kind(), ErrorKind::NoSuchTopic);
    let (headwater, claims) = {
        headwater.close().await.expect("closed");
        with_messages(case, 1).await
    };
    let missing = headwater.claims("orders", "other").await.expect_err("no group");
    assert_eq!(missing.kind(), ErrorKind::NoSuchSubscription);
    assert_eq!(headwater.groups("orders").list().await.expect("groups").len(), 1, "none was created");
    headwater.groups("orders").pause("email").await.expect("paused");
    assert_eq!(claim(&claims, 1).await.len(), 0);
    headwater.groups("orders").resume("email").await.expect("resumed");
    assert_eq!(claim(&claims, 1).await.len(), 1);
    headwater.groups("orders").cancel("email").await.expect("cancelled");
    let error = claims.claim(Holder::new(), &ClaimOptions::at_most(1)).await.expect_err("cancelled");
    assert!(matches!(error.kind(), ErrorKind::InvalidTransition | ErrorKind::NoSuchSubscription), "{error}");
    headwater.close().await.expect("closed");
}

/// What a holder has is known to every process, and shrinks as it is settled.
pub async fn what_a_holder_has_is_known_to_all(case: &Case) {
    let (headwater, claims) = with_messages(case, 5).await;
    let holder = Holder::new();
    let claimed = claims.claim(holder, &ClaimOptions::at_most(4)).await.expect("claimed");
    let other = process(case).await;
    let elsewhere = other.claims("orders", "email").await.expect("claims");
    let held = async || -> u64 {
        elsewhere.held(holder).await.expect("read").expect("few").iter().map(|range| range.span()).sum()
    };
    assert_eq!(held().await, 4);
    settle(&claims, &claimed[1..3], &Verdict::Done).await;
    assert_eq!(held().await, 2);
    assert_eq!(elsewhere.held(Holder::new()).await.expect("read"), Some(vec![]));
    case.advance(MINUTE * 60);
    assert_eq!(held().await, 0, "the lease is over");
    other.close().await.expect("closed");
    headwater.close().await.expect("closed");
}
