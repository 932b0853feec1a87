//! Which process runs maintenance, and for how long.

use tokio::sync::watch;

use super::*;
use crate::maintenance::term::keep;
use crate::store::Maintenance as _;

#[tokio::test(start_paused = true)]
async fn one_of_many_is_elected_and_a_killed_one_is_replaced_within_fifteen_seconds() {
    let fake = fake(vec![]);
    let dead = Owner::new("killed").unwrap();
    assert!(fake.elect(&dead, super::plan::TERM).await.unwrap());
    let killed_at = Instant::now();
    let others: Vec<_> = (0..5).map(|_| maintenance(&fake).start()).collect();
    pass(9).await;
    assert_eq!(fake.worker(), Some(dead));
    assert_eq!(fake.count("advance_heads"), 0, "no other process runs jobs meanwhile");
    while fake.worker().is_none_or(|worker| worker.as_str().starts_with("killed")) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(killed_at.elapsed() < Duration::from_secs(15), "{:?}", killed_at.elapsed());
    let elected = fake.worker();
    pass(100).await;
    assert_eq!(fake.worker(), elected, "confirmed, so no other process is elected");
    for other in others {
        other.stop().await;
    }
    assert_eq!(fake.worker(), None, "given up on stop");
}

#[tokio::test(start_paused = true)]
async fn who_is_not_elected_asks_every_few_seconds_and_does_nothing_else() {
    let fake = fake(vec![topic(1)]);
    fake.elect(&Owner::new("other").unwrap(), Duration::from_secs(1_000_000)).await.unwrap();
    fake.forget();
    let maintaining = maintenance(&fake).start();
    pass(900).await;
    let asked = fake.asked.lock().unwrap().len();
    assert_eq!(asked, fake.count("elect"));
    assert!((200..=225).contains(&asked), "{asked}");
    maintaining.stop().await;
}

#[tokio::test(start_paused = true)]
async fn losing_the_election_stops_the_jobs_at_their_next_step() {
    let fake = fake(vec![topic(1)]);
    fake.to_clean.lock().unwrap().insert(TopicId(1), 1_000_000);
    *fake.step_takes.lock().unwrap() = Duration::from_millis(100);
    let maintaining = maintenance(&fake).start();
    pass(30).await;
    assert!(fake.count("clean") > 10);
    let other = Owner::new("other").unwrap();
    *fake.elected.lock().unwrap() = Some((other, Instant::now() + Duration::from_secs(1_000)));
    pass(4).await;
    fake.forget();
    pass(100).await;
    assert_eq!([fake.count("clean"), fake.count("advance_heads")], [0, 0]);
    maintaining.stop().await;
    assert_eq!(fake.count("resign"), 0, "the term of another process is not given up");
}

#[tokio::test(start_paused = true)]
async fn a_worker_cut_off_from_the_database_stops_when_its_term_is_over() {
    let fake = fake(vec![topic(1)]);
    let maintaining = maintenance(&fake).start();
    pass(20).await;
    fake.broken.lock().unwrap().insert("elect");
    pass(11).await;
    fake.forget();
    pass(60).await;
    assert_eq!(fake.count("advance_heads"), 0);
    fake.broken.lock().unwrap().clear();
    pass(10).await;
    assert!(fake.count("advance_heads") > 0, "it recovers by itself");
    maintaining.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_confirmation_hangs_stops_when_its_term_is_over() {
    let fake = fake(vec![topic(1)]);
    let maintaining = maintenance(&fake).start();
    pass(20).await;
    fake.mute.lock().unwrap().insert("elect");
    while fake.worker().is_some() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // From here on the database gives the term to another process.
    fake.forget();
    pass(60).await;
    assert_eq!(fake.count("advance_heads"), 0);
    fake.mute.lock().unwrap().clear();
    pass(20).await;
    assert!(fake.count("advance_heads") > 0, "it recovers by itself");
    maintaining.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_term_counts_from_before_its_election_was_asked_for() {
    let fake = fake(vec![topic(1)]);
    *fake.elect_takes.lock().unwrap() = Duration::from_secs(8);
    let maintaining = maintenance(&fake).start();
    pass(7).await;
    assert!(fake.worker().is_some(), "elected, and the answer is under way");
    fake.mute.lock().unwrap().insert("elect");
    pass(4).await;
    assert_eq!(fake.worker(), None, "the database's term is over");
    fake.forget();
    pass(30).await;
    assert_eq!(fake.count("advance_heads"), 0);
    drop(maintaining);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_fell_due_while_the_election_was_lost_does_not_run() {
    let fake = fake(vec![topic(1)]);
    let worker = worker(&fake, Plan::of(MaintenancePreset::Standard));
    let (on, elected) = watch::channel(true);
    let elected = StopSignal::while_true(elected);
    let losing = async {
        pass(20).await;
        assert!(fake.count("advance_heads") > 5);
        *fake.topics_take.lock().unwrap() = Duration::from_secs(4);
        fake.forget();
        while fake.count("topics") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The job fell due, and while it reads the topics another process is elected.
        pass(2).await;
        on.send_replace(false);
        fake.forget();
        pass(30).await;
    };
    tokio::join!(keep(&worker, Job::Heads, &elected), losing);
    assert_eq!(fake.count("advance_heads"), 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_it_stops_and_resigns() {
    let fake = fake(vec![]);
    let maintaining = maintenance(&fake).start();
    pass(20).await;
    assert!(fake.worker().is_some());
    drop(maintaining);
    pass(1).await;
    assert_eq!(fake.worker(), None);
    fake.forget();
    pass(60).await;
    assert!(fake.asked.lock().unwrap().is_empty());
}
