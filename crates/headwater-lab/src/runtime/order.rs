//! Order per key, while handlers fail, members join and leave, and whole consumers start and stop.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use headwater::topic::Ordering;
use headwater::{Handling, Headwater, Message, NewMessage, Running, TopicSettings};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Setting;
use crate::check::{Floor, GRACE, Judged, OrderBook, Place, Unit, progress, settled, soundness};

const TOPIC: &str = "ordered";
const GROUP: &str = "workers";
const KEYS: u64 = 1_000;
/// One handler run in this many fails, whatever the message and the attempt.
const FAILS_ONE_IN: u64 = 50;
/// The longest time until the members of the group change again.
const CHANGE_MAX: Duration = Duration::from_millis(500);
/// Longest time without any progress.
const STALLED: Duration = Duration::from_secs(30);

type Book = Arc<Mutex<OrderBook>>;

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    // A million in all.
    let messages = (if setting.quick { 50_000 } else { 1_000_000 }) / setting.stores.max(1) as u64;
    let (headwater, other) = (place.open().await?, place.open().await?);
    let settings = TopicSettings {
        ordering: Ordering::Key,
        max_attempts: 1_000,
        backoff_initial: Duration::from_millis(2),
        backoff_max: Duration::from_millis(10),
        ..TopicSettings::default()
    };
    headwater.topic(TOPIC).settings(settings).create().await?;
    progress(&format!("publishing {messages} messages of {KEYS} keys"));
    publish(&headwater, messages).await?;
    let book = Book::default();
    let start = Instant::now();
    let changes = consume(&headwater, &other, &book, messages, setting.seed).await?;
    settled(&headwater, TOPIC, GROUP, Duration::from_secs(30)).await?;
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    let sound = soundness(&headwater).await?;
    other.close().await?;
    headwater.close().await?;
    let book = book.lock().expect("no panic while held");
    Ok(vec![
        Judged::none_of("inversions", book.inversions)
            .note(format!("{changes}, {rate:.0} messages a second")),
        Judged::none_of("two of a key at once", book.overlaps),
        Judged::all_of("messages done", book.done, messages),
        Judged::new("messages redelivered", book.repeats as f64, Unit::Count, Floor::None),
        sound,
    ])
}

async fn publish(headwater: &Headwater, messages: u64) -> Result<()> {
    let producer = headwater.producer(TOPIC);
    for first in (0..messages).step_by(5_000) {
        let last = messages.min(first + 5_000);
        let message = |n: u64| NewMessage::new(format!("{}", n / KEYS)).key(format!("{}", n % KEYS));
        producer.send_batch(&(first..last).map(message).collect::<Vec<_>>()).await?;
    }
    Ok(())
}

/// What changed while it ran.
#[derive(Debug, Default)]
struct Changes {
    members: u64,
    consumers: u64,
}

impl std::fmt::Display for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} times a member joined or left, {} times a consumer", self.members, self.consumers)
    }
}

/// Serves the group until everything is done, while its members change all the time.
async fn consume(
    headwater: &Headwater,
    other: &Headwater,
    book: &Book,
    messages: u64,
    seed: u64,
) -> Result<Changes> {
    let mut random = StdRng::seed_from_u64(seed);
    let done = || book.lock().expect("no panic while held").done;
    let steady = serve(headwater, "steady", book, seed).await?;
    let (mut guest, mut second) = (None::<Running>, false);
    let mut changes = Changes::default();
    let (mut moved, mut moved_at, mut said) = (0, Instant::now(), Instant::now());
    while done() < messages {
        // Often enough on a fast store, and not only when nothing moves on a slow one.
        let (until, next) = (Instant::now() + CHANGE_MAX, done() + random.random_range(1..=messages / 50));
        while Instant::now() < until && done() < next.min(messages) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if random.random_range(0..2) == 0 {
            changes.members += 1;
            if second {
                steady.leave("second")?;
            } else {
                steady.join("second", handling(book, seed ^ changes.members))?;
            }
            second = !second;
        } else {
            changes.consumers += 1;
            guest = match guest.take() {
                Some(guest) => {
                    guest.shutdown(GRACE).await?;
                    None
                }
                None => Some(serve(other, "guest", book, seed ^ (changes.consumers << 32)).await?),
            };
        }
        if done() > moved {
            (moved, moved_at) = (done(), Instant::now());
        }
        ensure!(moved_at.elapsed() < STALLED, "stuck at {moved} of {messages} for {STALLED:?}");
        if said.elapsed() > Duration::from_secs(5) {
            said = Instant::now();
            progress(&format!("{moved} of {messages} done"));
        }
    }
    if let Some(guest) = guest {
        guest.shutdown(GRACE).await?;
    }
    steady.shutdown(GRACE).await?;
    Ok(changes)
}

async fn serve(headwater: &Headwater, member: &str, book: &Book, seed: u64) -> Result<Running> {
    let consumer = headwater.consumer(TOPIC, GROUP).handling(member, handling(book, seed));
    Ok(consumer.run().await?)
}

fn handling(book: &Book, seed: u64) -> Handling {
    let (book, random) = (Arc::clone(book), Arc::new(Mutex::new(StdRng::seed_from_u64(seed))));
    Handling::one(move |message: Message, _| {
        let book = Arc::clone(&book);
        let fails = random.lock().expect("no panic while held").random_range(0..FAILS_ONE_IN) == 0;
        async move {
            let key: u64 = message.key.as_deref().unwrap_or_default().parse()?;
            let number: u64 = std::str::from_utf8(&message.payload)?.parse()?;
            book.lock().expect("no panic while held").begin(key, number);
            // Lets others run in between, so that two of a key at once would be seen.
            tokio::task::yield_now().await;
            book.lock().expect("no panic while held").end(key, number, !fails);
            if fails { Err("now and then".into()) } else { Ok(()) }
        }
    })
}
