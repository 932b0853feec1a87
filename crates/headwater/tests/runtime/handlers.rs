//! The forms of handlers, what they share, and layers around them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater::handler::{Handled, Layer, Next};
use headwater::settle::Verdict;
use headwater::testing::ManualClock;
use headwater::transaction::Transaction;
use headwater::{Bury, Context, Failure, HandlerResult, Handling, Headwater, Json, Messages, Skip, Verdicts};

use crate::each::{Place, on_each};

on_each!(
    every_form_of_a_handler_is_called,
    a_state_that_no_consumer_has_fails_the_message,
    an_error_of_any_type_is_a_failure_and_keeps_a_chosen_outcome,
    layers_run_around_each_call_in_order,
    a_layer_sees_errors_and_may_change_them,
    layers_run_around_handlers_in_transactions,
    members_that_join_later_have_layers_and_state,
);

type Notes = Arc<Mutex<Vec<String>>>;

fn note(notes: &Notes, text: impl Into<String>) {
    notes.lock().unwrap().push(text.into());
}

fn taken(notes: &Notes) -> Vec<String> {
    std::mem::take(&mut *notes.lock().unwrap())
}

async fn open(place: &Place, messages: u64) -> Headwater {
    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    headwater.topic("orders").pub_sub().create().await.unwrap();
    for n in 0..messages {
        headwater.producer("orders").send(&n).await.unwrap();
    }
    headwater
}

async fn plain_function(Json(n): Json<u64>, context: Context) -> HandlerResult {
    note(context.state::<Notes>(), format!("function {n}"));
    Ok(())
}

async fn every_form_of_a_handler_is_called(place: Place) {
    let headwater = open(&place, 1).await;
    let notes = Notes::default();
    let seen = Arc::clone(&notes);
    let forms: [(&str, Handling); 4] = [
        (
            "payload",
            Handling::one(move |Json(n): Json<u64>| {
                note(&seen, format!("payload {n}"));
                async { Ok(()) }
            }),
        ),
        (
            "context",
            Handling::one(|Json(n): Json<u64>, context: Context| async move {
                note(context.state::<Notes>(), format!("context {n}"));
                Ok(())
            }),
        ),
        ("function", Handling::one(plain_function)),
        (
            "batch",
            Handling::batch(|messages: Messages, context: Context| async move {
                note(context.state::<Notes>(), format!("batch of {}", messages.len()));
                assert_eq!(context.messages().len(), messages.len());
                Ok(())
            }),
        ),
    ];
    for (name, handling) in forms {
        let consumer = headwater.consumer("orders", name).handling("one", handling);
        let mut consumer = consumer.state(Arc::clone(&notes)).state(7_u8).stepwise().await.unwrap();
        assert_eq!(consumer.drain().await.unwrap(), 1, "{name}");
        assert_eq!(consumer.running().health().totals.acked, 1, "{name}");
    }
    let expected = ["payload 0", "context 0", "function 0", "batch of 1"];
    assert_eq!(taken(&notes), expected);
    place.leave(&headwater).await;
}

async fn a_state_that_no_consumer_has_fails_the_message(place: Place) {
    let headwater = open(&place, 1).await;
    let consumer = headwater.consumer("orders", "email").member("mailer", plain_function).state(7_u8);
    consumer.max_attempts(1).stepwise().await.unwrap().drain().await.unwrap();
    let error = headwater.dead_letters().of("orders", "email").list(9).await.unwrap().remove(0).error;
    assert!(error.contains("member mailer takes a state of type") && error.contains(".state("), "{error}");
    place.leave(&headwater).await;
}

#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("no stock of {0}")]
    NoStock(u64),
    #[error("order {0}")]
    Order(u64, #[source] Bury<&'static str>),
}

async fn an_error_of_any_type_is_a_failure_and_keeps_a_chosen_outcome(place: Place) {
    use anyhow::Context as _;
    async fn anyhow(Json(n): Json<u64>) -> anyhow::Result<()> {
        match n {
            0 => Err(Bury("a broken order")).context("while shipping")?,
            1 => Err(Skip)?,
            2 => anyhow::bail!("no stock"),
            _ => {}
        }
        Ok(())
    }
    async fn own(Json(n): Json<u64>, _: Context) -> Result<(), Broken> {
        match n {
            0 => Err(Broken::Order(0, Bury("a broken order"))),
            2 => Err(Broken::NoStock(2)),
            _ => Ok(()),
        }
    }
    let headwater = open(&place, 4).await;
    let forms = [
        ("anyhow", Handling::function(anyhow), "while shipping: a broken order", 1, 1),
        ("own", Handling::function(own), "order 0: a broken order", 2, 0),
        (
            "context",
            Handling::one(|Json(n): Json<u64>, context: Context| async move {
                match n {
                    0 => context.bury("a broken order"),
                    1 => context.skip(),
                    2 => context.retry_after(Duration::from_secs(9), "no stock"),
                    _ => Ok(()),
                }
            }),
            "a broken order",
            1,
            1,
        ),
        (
            "closure",
            Handling::function(|Json(n): Json<u64>| async move {
                if n == 0 {
                    return Err(anyhow::Error::from(Bury(format!("order {n}"))));
                }
                if n == 2 { Err(anyhow::anyhow!("no stock")) } else { Ok::<_, anyhow::Error>(()) }
            }),
            "order 0",
            2,
            0,
        ),
    ];
    for (group, handling, reason, acked, skipped) in forms {
        let consumer = headwater.consumer("orders", group).handling("one", handling);
        let mut consumer = consumer.stepwise().await.unwrap();
        consumer.drain().await.unwrap();
        let totals = consumer.running().health().totals;
        let counts = (totals.acked - totals.skipped, totals.skipped, totals.retried, totals.buried);
        assert_eq!(counts, (acked, skipped, 1, 1), "{group}: {totals:?}");
        let letter = headwater.dead_letters().of("orders", group).list(9).await.unwrap().remove(0);
        assert_eq!(letter.error, reason, "{group}");
    }
    place.leave(&headwater).await;
}

/// Notes what it sees, before and after.
struct Noting(&'static str, Notes);

impl Layer for Noting {
    async fn handle(&self, context: &Context, next: Next<'_>) -> Handled {
        note(&self.1, format!("{} before {}", self.0, context.message().offset));
        let handled = next.run().await;
        note(&self.1, format!("{} after {}", self.0, if handled.is_ok() { "ok" } else { "error" }));
        handled
    }
}

async fn layers_run_around_each_call_in_order(place: Place) {
    let headwater = open(&place, 1).await;
    let notes = Notes::default();
    let inner = Arc::clone(&notes);
    let one = Handling::one(move |_: Json<u64>| {
        let inner = Arc::clone(&inner);
        async move {
            note(&inner, "handled");
            Ok(())
        }
    });
    let inner = Arc::clone(&notes);
    let batch = Handling::batch(move |_: Messages, _: Context| {
        let inner = Arc::clone(&inner);
        async move {
            note(&inner, "handled");
            Ok(())
        }
    });
    for (group, handling) in [("one", one), ("batch", batch)] {
        let mut consumer = headwater
            .consumer("orders", group)
            .layer(Noting("outer", Arc::clone(&notes)))
            .layer(Noting("inner", Arc::clone(&notes)))
            .handling("m", handling)
            .stepwise()
            .await
            .unwrap();
        consumer.drain().await.unwrap();
        let expected = ["outer before 1", "inner before 1", "handled", "inner after ok", "outer after ok"];
        assert_eq!(taken(&notes), expected, "{group}");
    }
    place.leave(&headwater).await;
}

/// Buries what fails, does not call the handler for odd numbers, and skips the second of a batch.
struct Strict;

impl Layer for Strict {
    async fn handle(&self, context: &Context, next: Next<'_>) -> Handled {
        if context.message().payload == "1" {
            return Err(Skip.into());
        }
        match next.run().await {
            Err(failure) if matches!(failure.verdict(), Verdict::Failed(_)) => {
                Err(Bury(format!("strict: {failure}")).into())
            }
            Ok(mut verdicts) if context.messages().len() > 1 => {
                verdicts.failed(context.messages()[1].offset, Skip);
                Ok(verdicts)
            }
            handled => handled,
        }
    }
}

async fn a_layer_sees_errors_and_may_change_them(place: Place) {
    let headwater = open(&place, 3).await;
    let mut consumer = headwater
        .consumer("orders", "one")
        .layer(Strict)
        .member("m", |Json(n): Json<u64>| async move {
            assert_ne!(n, 1, "the layer did not call it");
            if n == 2 { Err("no stock".into()) } else { Ok(()) }
        })
        .stepwise()
        .await
        .unwrap();
    consumer.drain().await.unwrap();
    let totals = consumer.running().health().totals;
    assert_eq!((totals.acked, totals.skipped, totals.retried, totals.buried), (2, 1, 0, 1), "{totals:?}");
    let letter = headwater.dead_letters().of("orders", "one").list(9).await.unwrap().remove(0);
    assert_eq!(letter.error, "strict: no stock");
    let all = |_: Messages, _: Context| async { Ok::<_, Failure>(Verdicts::new()) };
    let consumer = headwater.consumer("orders", "batch").layer(Strict).handling("m", Handling::batch(all));
    let mut consumer = consumer.stepwise().await.unwrap();
    consumer.drain().await.unwrap();
    let totals = consumer.running().health().totals;
    assert_eq!((totals.acked, totals.skipped), (3, 1), "{totals:?}");
    place.leave(&headwater).await;
}

async fn layers_run_around_handlers_in_transactions(place: Place) {
    let headwater = open(&place, 2).await;
    let neutral = || {
        Handling::transactional(|tx: Transaction, Json(n): Json<u64>, context: Context| async move {
            tx.query("SELECT 1", ()).await?;
            note(context.state::<Notes>(), "handled");
            if n == 1 { Err("no".into()) } else { Ok(()) }
        })
    };
    let own = if headwater.store().engine() == "sqlite" {
        Handling::in_sqlite(|_, Json(n): Json<u64>, context: &Context| {
            note(context.state::<Notes>(), "handled");
            if n == 1 { Err("no".into()) } else { Ok(()) }
        })
    } else {
        Handling::in_postgres(|_, Json(n): Json<u64>, context: Context| async move {
            note(context.state::<Notes>(), "handled");
            if n == 1 { Err("no".into()) } else { Ok(()) }
        })
    };
    for (group, handling) in [("neutral", neutral()), ("own", own)] {
        let notes = Notes::default();
        let mut consumer = headwater
            .consumer("orders", group)
            .max_attempts(1)
            .layer(Noting("layer", Arc::clone(&notes)))
            .state(Arc::clone(&notes))
            .handling("m", handling)
            .stepwise()
            .await
            .unwrap();
        consumer.drain().await.unwrap();
        let expected =
            ["layer before 1", "handled", "layer after ok", "layer before 2", "handled", "layer after error"];
        assert_eq!(taken(&notes), expected, "{group}");
        let totals = consumer.running().health().totals;
        assert_eq!((totals.acked, totals.buried), (1, 1), "{group}");
    }
    place.leave(&headwater).await;
}

async fn members_that_join_later_have_layers_and_state(place: Place) {
    let headwater = open(&place, 1).await;
    let notes = Notes::default();
    let mut consumer = headwater
        .consumer("orders", "email")
        .layer(Noting("layer", Arc::clone(&notes)))
        .state(Arc::clone(&notes))
        .handling("never", Handling::one(|_: Json<u64>| async { Ok(()) }).when(|_| false))
        .stepwise()
        .await
        .unwrap();
    consumer.running().join("late", Handling::one(plain_function)).unwrap();
    consumer.drain().await.unwrap();
    assert_eq!(taken(&notes), ["layer before 1", "function 0", "layer after ok"]);
    place.leave(&headwater).await;
}
