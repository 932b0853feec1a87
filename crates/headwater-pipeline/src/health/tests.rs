//! What health shows after records.

use super::*;
use crate::error::ErrorCode;

#[tokio::test(start_paused = true)]
async fn figures_are_shown_without_an_exporter() {
    let health = Health::new("environment-1", "index", Duration::from_secs(60));
    health.set_run("run_a");
    tokio::time::advance(Duration::from_secs(10)).await;
    health.record_flush(250, 5_000, Duration::from_millis(20));
    health.count(Counter::BatchesProcessed, 2);
    health.set_buffer(50, 4_096);
    health.set_pool(PoolFigures { active: 1, idle: 2, total: 3, waiting: 0 });

    let seen = health.snapshot();
    assert_eq!(
        (seen.run.as_str(), seen.service.as_str(), seen.resource.as_str()),
        ("run_a", "environment-1", "index")
    );
    assert_eq!(
        (seen.counts.ticks_flushed, seen.counts.cells_written, seen.counts.batches_processed),
        (250, 5_000, 2)
    );
    assert_eq!((seen.cells_per_second, seen.batches_per_second), (500.0, 0.2));
    assert_eq!((seen.buffer_ticks, seen.buffer_bytes), (50, 4_096));
    let latency = seen.write_latency.expect("one write");
    for ms in [latency.p50_ms, latency.p95_ms, latency.p99_ms, latency.avg_ms] {
        assert!((ms - 20.0).abs() < 1.0, "{latency:?}");
    }
    assert_eq!(seen.pool.expect("set").total, 3);

    let text = serde_json::to_string(&seen).expect("written");
    assert_eq!(serde_json::from_str::<HealthSnapshot>(&text).expect("read"), seen);
}

#[test]
fn last_hundred_errors_are_kept() {
    let health = Health::default();
    for n in 0..250 {
        let error = Error::transient(ErrorCode::WriteFailed, format!("disk full {n}"));
        health.record_error(&error, format_args!("batch {n}"));
    }
    health.record_error(&Error::invalid("ß".repeat(TEXT_BYTES_MAX)), "start");
    let seen = health.snapshot();
    assert_eq!((seen.error_count, seen.last_errors.len()), (251, ERRORS_KEPT));
    assert_eq!(seen.last_errors[0].code, "INVALID_CONFIGURATION");
    assert!(seen.last_errors[0].message.len() <= TEXT_BYTES_MAX + '…'.len_utf8());
    assert_eq!(seen.last_errors[1].code, "WRITE_FAILED");
    assert_eq!(seen.last_errors[1].context, "batch 249");
}

#[test]
fn sum_of_bindings() {
    let (one, two) = (Health::default(), Health::default());
    one.record_flush(1, 10, Duration::from_millis(1));
    two.record_flush(2, 20, Duration::from_millis(99));
    two.record_error(&Error::invalid("x"), "y");
    let sum = Health::sum([&one, &two]);
    assert_eq!((sum.counts.ticks_flushed, sum.counts.cells_written, sum.error_count), (3, 30, 1));
    let latency = sum.write_latency.expect("two writes");
    assert!(latency.p50_ms < 2.0 && latency.p99_ms > 90.0, "{latency:?}");
}

#[test]
fn counters_have_distinct_names_in_the_order_of_the_enum() {
    for (at, counter) in Counter::ALL.into_iter().enumerate() {
        assert_eq!(counter as usize, at);
        assert_eq!(counter.metric(), format!("headwater_pipeline_{}", counter.name()));
    }
}
