//! Servers that start, stop, crash and find their port taken. They need a PostgreSQL installation; CI must have one.

use std::net::TcpStream;
use std::sync::mpsc;

use super::*;

fn has_server() -> bool {
    let found = Programs::find();
    assert!(found.is_ok() || std::env::var_os("CI").is_none(), "{found:?}");
    found.is_ok()
}

fn start(listen: Listen) -> Server {
    Server::start(&std::env::temp_dir(), listen, &[("fsync", "off")]).unwrap()
}

#[test]
fn panic_leaves_no_server_behind() {
    if !has_server() {
        return;
    }
    let (sender, receiver) = mpsc::channel();
    let run = std::thread::spawn(move || {
        let mut server = start(Listen::Loopback);
        server.wait(|| Ok(())).unwrap();
        let reached = TcpStream::connect(("127.0.0.1", server.port())).is_ok();
        sender.send((reached, server.port(), server.log_file(), server.sockets.path().to_owned())).unwrap();
        panic!("expected by this test");
    });
    assert!(run.join().is_err());
    let (reached, port, log, sockets) = receiver.recv().unwrap();
    assert!(reached);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert!(!log.parent().unwrap().exists() && !sockets.exists());
}

#[test]
fn server_ends_with_the_thread_that_started_it() {
    if !has_server() || find_program("setpriv").is_none() {
        return;
    }
    let started = std::thread::spawn(|| {
        let mut server = start(Listen::Socket);
        server.wait(|| Ok(())).unwrap();
        server
    });
    let mut server = started.join().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let child = &mut server.process.as_mut().unwrap().child;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it outlived its thread");
        std::thread::sleep(POLL);
    }
}

#[test]
fn taken_port_is_left_for_another_and_other_failures_are_shown() {
    if !has_server() {
        return;
    }
    let mut server = start(Listen::Loopback);
    server.wait(|| Ok(())).unwrap();
    server.stop(Stop::Fast).unwrap();
    // As if the port had been taken after it was found free.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut process = server.spawn_at(port, Instant::now(), 1).unwrap();
    process.child.wait().unwrap();
    server.process = Some(process);
    server.wait(|| Ok(())).unwrap();
    assert_ne!(server.port(), port);
    server.stop(Stop::Fast).unwrap();
    server.settings.push("no_such_setting=1".into());
    server.serve().unwrap();
    let error = server.wait(|| Ok(())).unwrap_err().to_string();
    assert!(error.contains("no_such_setting"), "{error}");
}

#[test]
fn killed_server_recovers_and_its_pid_file_is_not_taken_for_ready() {
    if !has_server() {
        return;
    }
    let mut server = start(Listen::Socket);
    server.wait(|| Ok(())).unwrap();
    let url = server.url("postgres");
    let killed = server.process.as_ref().unwrap().child.id();
    server.stop(Stop::Kill).unwrap();
    assert!(server.poll().is_err() && server.stop(Stop::Fast).is_err(), "it is stopped");
    assert!(is_ready(&server.data(), killed), "its pid file is still there");
    assert!(!is_ready(&server.data(), killed + 1));
    server.serve().unwrap();
    server.wait(|| Ok(())).unwrap();
    assert_eq!(server.url("postgres"), url);
    let interrupted = server.stop(Stop::Immediate).and_then(|()| server.serve());
    interrupted.unwrap();
    let error = server.wait(|| bail!("interrupted")).unwrap_err();
    assert_eq!(error.to_string(), "interrupted");
}

#[test]
fn log_tail_is_its_last_lines() {
    let all: Vec<String> = (0..30).map(|line| line.to_string()).collect();
    assert_eq!(tail(&all.join("\n")), all[10..].join("\n"));
    assert_eq!(tail(""), "");
}
