//! Requests and replies: each request gets its own reply, in time or not at all.

use std::time::Duration;

use headwater::{Bury, Context, ErrorKind, Handling, Headwater, Json, Message, Running};

use crate::each::{DEADLINE, Place, Seen, eventually, on_each};

on_each!(
    every_request_gets_its_own_reply,
    a_reply_commits_with_the_handlers_transaction,
    an_unanswered_request_names_topic_and_correlation_id,
    an_expired_request_is_not_handled,
    a_message_that_awaits_no_reply_is_refused_one,
    the_first_of_two_replies_counts,
);

async fn doubling(headwater: &Headwater) -> Running {
    headwater
        .consumer("numbers", "doubling")
        .member("one", |Json(n): Json<u64>, context: Context| async move {
            context.reply(&(2 * n)).await?;
            Ok(())
        })
        .run()
        .await
        .unwrap()
}

async fn every_request_gets_its_own_reply(place: Place) {
    let (asking, answering) = (place.open().await, place.open().await);
    asking.topic("numbers").create().await.unwrap();
    let running = doubling(&answering).await;
    let numbers = asking.producer("numbers");
    let requests = (0..50_u64).map(|n| {
        let numbers = numbers.clone();
        tokio::spawn(async move {
            let Json(twice) =
                numbers.request(&n).key(n).timeout(DEADLINE).answer::<Json<u64>>().await.unwrap();
            assert_eq!(twice, 2 * n);
        })
    });
    for request in requests.collect::<Vec<_>>() {
        request.await.unwrap();
    }
    let reply: Message = numbers.request(&7_u64).header("a", "b").timeout(DEADLINE).await.unwrap();
    assert_eq!(reply.payload, "14");
    let sent = answering.published("numbers").await.unwrap();
    let last = sent.last().unwrap();
    assert_eq!(last.correlation_id, reply.correlation_id);
    assert_eq!((last.headers["reply-to"].as_str(), last.headers["a"].as_str()), ("headwater.replies", "b"));
    let settings = asking.topics().get("headwater.replies").await.unwrap().settings;
    assert_eq!(settings.max_retention, Some(Duration::from_secs(1_200)), "replies do not pile up");
    let wrong = numbers.request(&7_u64).timeout(DEADLINE).answer::<Json<String>>().await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidInput, "{wrong}");
    running.shutdown(DEADLINE).await.unwrap();
    answering.close().await.unwrap();
    place.leave(&asking).await;
}

async fn a_reply_commits_with_the_handlers_transaction(place: Place) {
    let headwater = place.open().await;
    headwater.topic("numbers").create().await.unwrap();
    let first_fails =
        |context: &Context| if context.attempt() == 1 { Err("the first attempt fails") } else { Ok(()) };
    let once = if headwater.store().engine() == "sqlite" {
        Handling::in_sqlite(move |connection, Json(n): Json<u64>, context: &Context| {
            context.reply(&(10 * n + u64::from(context.attempt()))).within(connection)?;
            first_fails(context)?;
            Ok(())
        })
    } else {
        Handling::in_postgres(move |transaction, Json(n): Json<u64>, context: Context| async move {
            context.reply(&(10 * n + u64::from(context.attempt()))).within(&transaction).await?;
            first_fails(&context)?;
            Ok(())
        })
    };
    let running = headwater.consumer("numbers", "once").handling("one", once).run().await.unwrap();
    let numbers = headwater.producer("numbers");
    let Json(reply) = numbers.request(&4_u64).timeout(DEADLINE).answer::<Json<u64>>().await.unwrap();
    assert_eq!(reply, 42, "the reply of the attempt that failed was rolled back");
    assert_eq!(headwater.published("headwater.replies").await.unwrap().len(), 1);
    running.shutdown(DEADLINE).await.unwrap();
    place.leave(&headwater).await;
}

async fn an_unanswered_request_names_topic_and_correlation_id(place: Place) {
    let headwater = place.open().await;
    headwater.topic("numbers").create().await.unwrap();
    let numbers = headwater.producer("numbers");
    // A timeout includes the publish, which on a busy machine takes a while.
    let (mut timeout, mut texts, mut sent) = (Duration::from_secs(1), Vec::new(), Vec::new());
    while sent.is_empty() {
        assert!(timeout < DEADLINE, "the request was not published");
        let unanswered = numbers.request(&1_u64).timeout(timeout).await.unwrap_err();
        assert_eq!(unanswered.kind(), ErrorKind::Timeout);
        texts.push(unanswered.to_string());
        sent = headwater.published("numbers").await.unwrap();
        timeout *= 2;
    }
    let id = sent[0].correlation_id.as_deref().unwrap();
    assert!(texts.iter().any(|text| text.contains("topic numbers") && text.contains(id)), "{texts:?}");
    place.leave(&headwater).await;
}

async fn an_expired_request_is_not_handled(place: Place) {
    let (headwater, clock) = place.open_still().await;
    headwater.topic("numbers").create().await.unwrap();
    let numbers = headwater.producer("numbers");
    let published = async || !headwater.published("numbers").await.unwrap().is_empty();
    tokio::select! {
        reply = numbers.request(&1_u64).timeout(DEADLINE).into_future() => panic!("{reply:?}"),
        () = eventually("the request is published", published) => {}
    }
    clock.advance(DEADLINE);
    let seen = Seen::default();
    let noting = crate::each::noting(&seen);
    let mut consumer =
        headwater.consumer("numbers", "late").handling("one", noting).stepwise().await.unwrap();
    consumer.drain().await.unwrap();
    assert_eq!((seen.len(), consumer.running().health().totals.expired), (0, 1));
    place.leave(&headwater).await;
}

async fn a_message_that_awaits_no_reply_is_refused_one(place: Place) {
    let headwater = place.open().await;
    let seen = Seen::default();
    let add = seen.clone();
    let mut consumer = headwater
        .consumer("numbers", "strict")
        .member("one", move |_: Message, context: Context| {
            let add = add.clone();
            async move {
                let refused = context.reply(&1).await.unwrap_err();
                add.add((refused.kind(), refused.to_string()));
                Err(Bury("no reply awaited").into())
            }
        })
        .stepwise()
        .await
        .unwrap();
    headwater.producer("numbers").send(&1).await.unwrap();
    headwater.producer("numbers").send(&1).header("reply-to", "elsewhere").await.unwrap();
    consumer.drain().await.unwrap();
    for (kind, text) in seen.all() {
        assert_eq!(kind, ErrorKind::InvalidInput);
        assert!(text.contains("reply") && text.contains("producer.request"), "{text}");
    }
    assert_eq!(seen.len(), 2);
    place.leave(&headwater).await;
}

async fn the_first_of_two_replies_counts(place: Place) {
    let headwater = place.open().await;
    let running = headwater
        .consumer("numbers", "twice")
        .member("one", |Json(n): Json<u64>, context: Context| async move {
            context.reply(&n).await?;
            context.reply(&(n + 1)).await?;
            Ok(())
        })
        .run()
        .await
        .unwrap();
    for n in 0..5_u64 {
        let numbers = headwater.producer("numbers");
        let reply = numbers.request(&n).timeout(DEADLINE).answer::<Json<u64>>().await;
        assert_eq!(reply.unwrap(), Json(n));
    }
    running.shutdown(DEADLINE).await.unwrap();
    place.leave(&headwater).await;
}
