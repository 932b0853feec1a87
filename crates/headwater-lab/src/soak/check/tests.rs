//! A correct history passes, and each kind of damage to it is found.

use super::*;

fn facts() -> Facts {
    let committed = ["a", "b", "c"].map(|id| (id.to_owned(), Fate::Committed { at_us: 1_000 }));
    let published = committed.into_iter().chain([("x".to_owned(), Fate::RolledBack)]).collect();
    let log = Some(["a", "b", "c"].map(str::to_owned).into());
    Facts { published, log, lease_us: 10_000_000, ..Facts::default() }
}

/// The same with a server that was down from 10 s to 11 s, and lost settlements from 9 s on.
fn with_outage() -> Facts {
    let outage = Outage { kept_us: 9_000_000, back_us: 11_000_000 };
    Facts { outages: vec![outage], ..facts() }
}

fn delivered(token: i64, offset: i64, id: &str) -> MemberEvent {
    MemberEvent::Delivered { token, offset, id: id.into(), at_us: 1_500 + u64::try_from(token).unwrap() }
}

fn delivered_at(at_us: u64, token: i64, offset: i64, id: &str) -> MemberEvent {
    MemberEvent::Delivered { token, offset, id: id.into(), at_us }
}

fn acked(token: i64, first: i64, last: i64) -> MemberEvent {
    acked_at(1_600, token, first, last)
}

fn acked_at(at_us: u64, token: i64, first: i64, last: i64) -> MemberEvent {
    MemberEvent::Acked { token, first, last, at_us }
}

fn began(at_us: u64, offset: i64, id: &str) -> MemberEvent {
    MemberEvent::Began { offset, id: id.into(), at_us }
}

fn ended(at_us: u64, id: &str) -> MemberEvent {
    ended_in(0, at_us, id)
}

fn ended_in(transaction: i64, at_us: u64, id: &str) -> MemberEvent {
    MemberEvent::Ended { id: id.into(), transaction, at_us }
}

fn member(killed_us: Option<u64>, events: Vec<MemberEvent>) -> MemberHistory {
    MemberHistory { member: "m".into(), killed_us, events }
}

/// A correct history; tests damage it.
fn clean() -> Vec<MemberHistory> {
    vec![
        member(None, vec![delivered(1, 1, "a"), delivered(1, 2, "b"), acked(1, 1, 2)]),
        member(None, vec![delivered(2, 3, "c"), acked(2, 3, 3)]),
    ]
}

fn check(members: &[MemberHistory]) -> GroupFindings {
    check_group(&facts(), members)
}

#[test]
fn a_clean_history_passes() {
    let findings = check(&clean());
    assert!(findings.is_clean(), "{findings:?}");
    assert_eq!(findings.delivered, 3);
}

#[test]
fn a_message_settled_unseen_fails() {
    let mut members = clean();
    members[0].events.remove(1);
    let findings = check(&members);
    assert_eq!((findings.unseen, findings.lost, findings.is_clean()), (1, 0, false));
}

#[test]
fn a_dropped_message_fails_unless_its_loss_is_excused() {
    let mut members = clean();
    members[0].events.remove(1);
    let mut facts = facts();
    facts.log.as_mut().unwrap().remove("b");
    let findings = check_group(&facts, &members);
    assert_eq!((findings.unseen, findings.lost, findings.is_clean()), (0, 1, false));
    facts.excused.insert("b".into());
    assert!(check_group(&facts, &members).is_clean());
}

#[test]
fn a_message_of_unknown_fate_must_come_if_it_is_stored_and_may_stay_away_if_not() {
    let mut facts = facts();
    facts.published.insert("u".into(), Fate::Unknown);
    assert!(check_group(&facts, &clean()).is_clean());
    facts.log.as_mut().unwrap().insert("u".into());
    assert_eq!(check_group(&facts, &clean()).unseen, 1);
    let mut members = clean();
    members[1].events.extend([delivered(3, 4, "u"), acked(3, 4, 4)]);
    assert!(check_group(&facts, &members).is_clean());
}

#[test]
fn a_doubled_message_fails() {
    let mut members = clean();
    members[1].events.push(delivered(3, 1, "a"));
    let findings = check(&members);
    assert_eq!((findings.doubled, findings.is_clean()), (1, false));
}

#[test]
fn a_message_doubled_under_one_token_fails() {
    let mut members = clean();
    members[1].events.push(delivered(2, 3, "c"));
    let findings = check(&members);
    assert_eq!((findings.doubled, findings.misordered), (1, 1));
}

#[test]
fn a_message_of_a_rolled_back_transaction_fails() {
    let mut members = clean();
    members[1].events.push(delivered(3, 4, "x"));
    assert_eq!(check(&members).ghosts, 1);
    members[1].events.push(delivered(4, 5, "never-published"));
    assert_eq!(check(&members).ghosts, 2);
}

#[test]
fn a_reordered_lease_fails() {
    let mut members = clean();
    members[0].events.swap(0, 1);
    assert_eq!(check(&members).misordered, 1);
}

#[test]
fn what_was_in_flight_in_a_killed_member_may_come_again() {
    let mut members = clean();
    members.push(member(Some(1_600), vec![delivered(0, 3, "c")]));
    let findings = check(&members);
    assert!(findings.is_clean(), "{findings:?}");
    assert_eq!(findings.repeated, 1);
}

#[test]
fn what_a_killed_member_had_acked_may_not_come_again() {
    let mut members = clean();
    members.push(member(Some(1_700), vec![delivered(0, 3, "c"), acked(0, 3, 3)]));
    assert_eq!(check(&members).doubled, 1);
}

#[test]
fn what_a_live_member_did_not_ack_may_not_come_again() {
    let mut members = clean();
    members.push(member(None, vec![delivered(0, 3, "c")]));
    assert_eq!(check(&members).doubled, 1);
}

#[test]
fn what_an_outage_found_in_flight_may_come_again_and_nothing_older() {
    let late = delivered_at(12_000_000, 9, 3, "c");
    let with = |events: Vec<MemberEvent>| {
        let mut members = vec![clean().remove(0), member(None, events)];
        members.push(member(None, vec![late.clone(), acked_at(12_100_000, 9, 3, 3)]));
        check_group(&with_outage(), &members)
    };
    let unsettled = with(vec![delivered_at(9_900_000, 2, 3, "c")]);
    assert_eq!((unsettled.doubled, unsettled.repeated), (0, 1));
    let forgotten = with(vec![delivered_at(9_000_000, 2, 3, "c"), acked_at(9_500_000, 2, 3, 3)]);
    assert_eq!((forgotten.doubled, forgotten.repeated), (0, 1));
    let kept = with(vec![delivered_at(8_000_000, 2, 3, "c"), acked_at(8_500_000, 2, 3, 3)]);
    assert_eq!((kept.doubled, kept.repeated), (1, 0));
    let handled_long_ago = with(vec![began(7_000_000, 3, "c"), ended(7_000_100, "c")]);
    assert_eq!(handled_long_ago.doubled, 1);
    let handled_just_before = with(vec![began(9_000_000, 3, "c"), ended(9_000_100, "c")]);
    assert_eq!(handled_just_before.doubled, 0);
    let in_transaction = |other: i64| {
        let handled = [began(7_000_000, 3, "c"), ended_in(4, 7_000_100, "c")];
        with([&handled[..], &[began(7_000_200, 4, "d"), ended_in(other, 9_000_000, "d")]].concat())
    };
    assert_eq!(in_transaction(4).doubled, 0, "its transaction was open just before");
    assert_eq!(in_transaction(5).doubled, 1, "its own had ended long ago");
}

#[test]
fn a_fresh_lease_that_is_refused_was_ended_by_another() {
    let refused = |from_us: u64, at_us: u64| {
        let events = vec![delivered_at(from_us, 5, 3, "c"), MemberEvent::Refused { token: 5, at_us }];
        check_group(&with_outage(), &[clean().remove(0), member(None, events)])
    };
    assert_eq!(refused(20_000_000, 20_100_000).stolen, 1);
    assert!(!refused(20_000_000, 20_100_000).is_clean());
    assert_eq!(refused(20_000_000, 29_000_000).stolen, 0, "its deadline may have passed");
    assert_eq!(refused(9_900_000, 11_100_000).stolen, 0, "the outage may have lost the claim");
}

#[test]
fn latency_runs_from_commit_to_first_delivery() {
    let mut found = latencies_us(&facts().published, &clean(), "a");
    assert_eq!(found.pop(), Some((501, "a".to_owned())));
    assert!(found.is_empty());
}
