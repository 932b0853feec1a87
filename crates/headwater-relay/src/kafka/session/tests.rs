//! Which messages of a batch are sent, and which floors become cursors.

use headwater::bytes::Bytes;
use headwater::jiff::Timestamp;
use headwater::uuid::Uuid;

use super::*;

fn message(offset: i64) -> Message {
    Message {
        offset: Offset(offset),
        message_id: Uuid::from_u128(u128::try_from(offset).unwrap()),
        key: None,
        message_type: None,
        payload: Bytes::new(),
        content_type: None,
        headers: headwater::Headers::new(),
        correlation_id: None,
        created_at: Timestamp::UNIX_EPOCH,
    }
}

fn messages(offsets: impl IntoIterator<Item = i64>) -> Vec<Message> {
    offsets.into_iter().map(message).collect()
}

#[test]
fn what_the_position_contains_is_not_sent_again() {
    let mut position = Position::new(0);
    (1..=5).for_each(|offset| position.add(offset, 0));
    let plan = plan(&messages(3..=8), &position, &BTreeMap::new());
    assert_eq!((plan.send, plan.settled, plan.below), (vec![3, 4, 5], 6, None));
    assert!((1..=8).all(|offset| plan.position.contains(offset)));
}

#[test]
fn refused_messages_are_neither_sent_nor_part_of_the_position() {
    let refused = BTreeMap::from([(2, "too large".to_owned())]);
    let plan = plan(&messages(1..=3), &Position::new(0), &refused);
    assert_eq!(plan.send, [0, 2]);
    assert!(!plan.position.contains(2) && plan.position.contains(3));
}

#[test]
fn late_message_is_sent_once() {
    let mut position = Position::new(0);
    (1..=9).for_each(|offset| position.add(offset, 0));
    position.raise(9, 12);
    let late = plan(&messages([4]), &position, &BTreeMap::new());
    assert_eq!((late.send.as_slice(), late.below), ([0].as_slice(), Some(4)));
    let again = plan(&messages([4]), &late.position, &BTreeMap::new());
    assert!(again.send.is_empty());
}

#[test]
fn batch_that_does_not_fit_is_settled_in_part() {
    // Every second offset is missing: each message is a range of its own.
    let scattered = messages((0..4_000).map(|at| at * 2 + 1));
    let mut position = Position::new(0);
    let mut sent = 0;
    while sent < scattered.len() {
        let plan = plan(&scattered[sent..], &position, &BTreeMap::new());
        assert!(plan.position.encode().len() <= POSITION_BYTES_MAX);
        if plan.settled == 0 {
            // The oldest acks are certain by now.
            position.raise(scattered[sent - 1].offset.0, 0);
            continue;
        }
        assert_eq!(plan.send.len(), plan.settled);
        sent += plan.settled;
        position = plan.position;
    }
    assert!(position.contains(scattered.last().unwrap().offset.0));
}

#[test]
fn floor_becomes_the_cursor_once_a_later_cursor_of_the_group_is_old_too() {
    let start = Instant::now();
    let sample = |second: u64, floor: i64, next: i64| Sample {
        at: start + Duration::from_secs(second),
        floor,
        next,
        late: BTreeSet::new(),
    };
    let samples = vec![sample(0, 10, 20), sample(2, 15, 20), sample(4, 18, 30), sample(6, 29, 40)];
    let found = |second: u64| {
        let found = old_enough(&samples, start + Duration::from_secs(second), Duration::from_secs(4));
        found.map(|(_, sample, guard)| (sample.floor, guard))
    };
    assert_eq!(found(3), None, "too young");
    assert_eq!(found(6), None, "the group's cursor did not move");
    assert_eq!(found(8), Some((15, 30)));
    assert_eq!(found(10), Some((18, 40)));
}
