//! Brokers that start, end and start again. They need the programs; CI must have them.

use std::net::TcpStream;

use super::*;

fn has<K: Kind>() -> bool {
    let found = K::find();
    assert!(found.is_ok() || std::env::var_os("HEADWATER_TEST_REQUIRE_ALL").is_none(), "{found:?}");
    if let Err(error) = &found {
        println!("skipped: {error:#}");
    }
    found.is_ok()
}

fn is_open(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Starts, ends in order, starts again at the same port, is killed, starts again, and leaves nothing behind.
fn restarts<K: Kind>() {
    if !has::<K>() {
        return;
    }
    let mut broker = Broker::<K>::start(&std::env::temp_dir()).unwrap();
    broker.wait(|| Ok(())).unwrap();
    let (url, port) = (broker.url(), broker.port());
    let ports = broker.place.ports.clone();
    assert!(is_open(port), "{url}");
    for how in [Stop::Fast, Stop::Kill] {
        broker.stop(how).unwrap();
        assert!(!ports.iter().any(|port| is_open(*port)), "{how:?}");
        assert!(broker.is_stopped() && broker.poll().is_err() && broker.stop(how).is_err());
        broker.serve().unwrap();
        broker.wait(|| Ok(())).unwrap();
        assert!(is_open(port) && broker.url() == url);
    }
    let log = broker.log_file();
    drop(broker);
    assert!(!ports.iter().any(|port| is_open(*port)) && !log.parent().unwrap().exists());
}

#[test]
fn kafka_restarts_at_its_port() {
    restarts::<KafkaKind>();
}

#[test]
fn rabbitmq_restarts_at_its_port() {
    restarts::<RabbitMqKind>();
}

#[test]
fn nats_restarts_at_its_port() {
    restarts::<NatsKind>();
}

#[test]
fn broker_ends_with_the_thread_that_started_it() {
    if !has::<NatsKind>() || crate::find_program("setpriv").is_none() {
        return;
    }
    let started = std::thread::spawn(|| {
        let mut nats = Nats::start(&std::env::temp_dir()).unwrap();
        nats.wait(|| Ok(())).unwrap();
        nats
    });
    let mut nats = started.join().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while nats.poll().is_ok() {
        assert!(Instant::now() < deadline, "it outlived its thread");
        std::thread::sleep(POLL);
    }
}

#[test]
fn taken_port_is_left_for_another() {
    if !has::<NatsKind>() {
        return;
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut nats = Nats::start(&std::env::temp_dir()).unwrap();
    nats.stop(Stop::Kill).unwrap();
    nats.place.ports = vec![taken.local_addr().unwrap().port()];
    nats.running = Some(nats.spawn(Instant::now(), 1, true).unwrap());
    nats.wait(|| Ok(())).unwrap();
    assert_ne!(nats.port(), taken.local_addr().unwrap().port());
}

#[test]
fn failed_start_shows_the_log() {
    if !has::<NatsKind>() {
        return;
    }
    let mut nats = Nats::start(&std::env::temp_dir()).unwrap();
    nats.wait(|| Ok(())).unwrap();
    nats.stop(Stop::Kill).unwrap();
    std::fs::remove_dir_all(nats.place.path().join("data")).unwrap();
    std::fs::write(nats.place.path().join("data"), "no folder").unwrap();
    nats.serve().unwrap();
    let error = nats.wait(|| Ok(())).unwrap_err().to_string();
    assert!(error.contains("nats ended") && error.contains("[FTL]"), "{error}");
}

#[test]
fn ports_are_outside_of_the_range_of_outgoing_connections() {
    let ports = free_ports(3).unwrap();
    assert!(ports.iter().all(|port| PORTS.contains(port)) && ports[0] != ports[1]);
}
