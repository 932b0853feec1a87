//! Takeover: the leases of a process that ended are free at once; a process that is only silent or disconnected keeps
//! its leases.

use std::process::{Child, Command};
use std::time::Instant;

use super::case::{Case, DEADLINE, Scene, failed, owner, pause, range};
use super::processes;
use crate::error::ErrorKind;
use crate::lease::Lease;
use crate::settle::Settlement;

/// How long an owner may be silent.
const SILENT_MS: u64 = 15_000;
/// How often owners check each other.
const WATCH_MS: u64 = 500;
/// This many calls in a row last longer than any grace period.
const CALLS: u64 = 10;

/// A scene of a second process, in effect, with a lease of this owner, which has sent a heartbeat and proved that it
/// is alive.
async fn holder(case: &Case, scene: &Scene, name: &str) -> (Scene, Lease) {
    let holder = scene.through(&case.open().await);
    holder.heartbeat_judging(name, SILENT_MS).await;
    assert_eq!(holder.take_over(name).await, 0);
    let lease = holder.claim_one(name, 1).await;
    (holder, lease)
}

/// Calls until leases have ended, and returns how many.
async fn ended(case: &Case, scene: &Scene) -> u64 {
    let until = Instant::now() + DEADLINE;
    loop {
        let leases = scene.take_over("lives").await;
        if leases > 0 {
            return leases;
        }
        assert!(Instant::now() < until, "nothing was taken over");
        case.advance_ms(WATCH_MS);
        pause().await;
    }
}

/// Calls several times; no lease may end meanwhile.
async fn keeps(case: &Case, scene: &Scene, why: &str) {
    for _ in 0..CALLS {
        assert_eq!(scene.take_over("lives").await, 0, "{why}");
        case.advance_ms(WATCH_MS);
    }
}

/// A takeover needs no further heartbeat. The message is handed out as a second attempt, and the old token settles
/// nothing.
pub async fn a_closed_owners_leases_end_at_once(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    scene.heartbeat_judging("lives", SILENT_MS).await;
    let (other, lost) = holder(case, &scene, "ends").await;
    keeps(case, &scene, "it is open").await;
    other.store.close().await.expect("closes");
    assert_eq!(ended(case, &scene).await, 1);
    failed(scene.settle(Settlement::ack_all(&lost)).await, ErrorKind::LeaseLost);
    let again = scene.claim_one("lives", 1).await;
    assert_eq!((again.range, again.attempt, again.suspect), (range(1, 1), 2, true));
    keeps(case, &scene, "each lease ends once").await;
}

/// A process that is stopped sends nothing, but its kernel keeps its proof.
pub async fn a_silent_live_owner_keeps_its_leases_until_the_silence_limit(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    scene.heartbeat_judging("lives", SILENT_MS).await;
    let (stopped, lost) = holder(case, &scene, "stopped").await;
    for _ in 0..SILENT_MS / WATCH_MS {
        assert_eq!(scene.take_over("lives").await, 0);
        case.advance_ms(WATCH_MS);
    }
    assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 0);
    case.advance_ms(1);
    assert_eq!(scene.heartbeat_judging("lives", SILENT_MS).await, 1);
    failed(stopped.settle(Settlement::ack_all(&lost)).await, ErrorKind::LeaseLost);
    let theirs = scene.claim_one("lives", 1).await;
    failed(stopped.settle(Settlement::ack_all(&lost)).await, ErrorKind::LeaseLost);
    scene.ack(&theirs).await;
    // The process continues, and has a proof again.
    stopped.heartbeat_judging("stopped", SILENT_MS).await;
    assert_eq!(stopped.take_over("stopped").await, 0);
    let kept = stopped.claim_one("stopped", 1).await;
    keeps(case, &scene, "it is alive").await;
    stopped.ack(&kept).await;
}

/// An owner that reconnects in time loses nothing.
pub async fn an_owner_whose_connections_were_cut_keeps_its_leases(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    scene.heartbeat_judging("lives", SILENT_MS).await;
    let (cut, lease) = holder(case, &scene, "cut").await;
    assert_eq!(scene.take_over("lives").await, 0);
    if !case.harness().cut_connections().await {
        println!("skipped: this engine has no connections to cut");
        return;
    }
    for _ in 0..CALLS {
        for (scene, name) in [(&scene, "lives"), (&cut, "cut")] {
            match scene.store.take_over(&owner(name)).await {
                Ok(leases) => assert_eq!(leases, 0),
                Err(error) => {
                    assert!(error.is_retryable(), "the first answers report broken connections: {error}");
                }
            }
        }
        case.advance_ms(WATCH_MS);
    }
    cut.ack(&lease).await;
}

/// The leases of an owner without heartbeats are plain ones, whatever happens to its process.
pub async fn an_owner_without_heartbeats_is_not_taken_over(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    scene.heartbeat_judging("lives", SILENT_MS).await;
    let other = scene.through(&case.open().await);
    assert_eq!(other.take_over("without heartbeat").await, 0);
    let lease = other.claim_one("without heartbeat", 1).await;
    other.store.close().await.expect("closes");
    keeps(case, &scene, "it sent no heartbeat").await;
    scene.ack(&lease).await;
}

/// There are more owners than one call checks: each is checked by some call, and none is left out.
pub async fn every_ended_owner_of_many_is_found(case: &Case) {
    const EACH: usize = 20;
    let scene = case.queue().await;
    scene.publish(2 * EACH).await;
    scene.heartbeat_judging("lives", SILENT_MS).await;
    let (ends, stays) = (scene.through(&case.open().await), scene.through(&case.open().await));
    let mut kept = Vec::new();
    for n in 0..EACH {
        for (scene, name) in [(&ends, format!("{n}-ends")), (&stays, format!("{n}-stays"))] {
            scene.heartbeat_judging(&name, SILENT_MS).await;
            scene.take_over(&name).await;
            let lease = scene.claim_one(&name, 1).await;
            if name.ends_with("stays") {
                kept.push(lease);
            }
        }
    }
    ends.store.close().await.expect("closes");
    let (mut found, until) = (0, Instant::now() + DEADLINE);
    while found < EACH as u64 {
        for n in 0..EACH {
            found += stays.take_over(&format!("{n}-stays")).await;
        }
        assert!(Instant::now() < until, "{found} of {EACH} were found");
        case.advance_ms(WATCH_MS);
        pause().await;
    }
    assert_eq!(found, EACH as u64);
    for lease in kept {
        stays.ack(&lease).await;
    }
}

/// A real process is killed while it holds a lease.
pub async fn a_killed_process_is_taken_over(case: &Case) {
    let Some((scene, mut child)) = with_process(case).await else { return };
    keeps(case, &scene, "it is alive").await;
    child.kill().expect("the child is killed");
    child.wait().expect("the child ends");
    assert_eq!(ended(case, &scene).await, 1);
    let again = scene.claim_one("lives", 1).await;
    assert_eq!((again.attempt, again.suspect), (2, true));
    scene.ack(&again).await;
}

/// A process that is stopped by a signal sends nothing at all, and is not taken for ended.
pub async fn a_stopped_process_is_not_taken_over(case: &Case) {
    let Some((scene, mut child)) = with_process(case).await else { return };
    let stopped = Command::new("kill").args(["-STOP", &child.id().to_string()]).status();
    if stopped.is_ok_and(|status| status.success()) {
        keeps(case, &scene, "it is only stopped").await;
        scene.claim_nothing("lives", 1).await;
    } else {
        println!("skipped: processes cannot be stopped here");
    }
    child.kill().expect("the child is killed");
    child.wait().expect("the child ends");
}

/// A scene and a process that holds its only message.
async fn with_process(case: &Case) -> Option<(Scene, Child)> {
    let scene = case.queue().await;
    scene.publish(1).await;
    scene.heartbeat_judging("lives", SILENT_MS).await;
    let Some(child) = processes::holder(case).await else {
        println!("skipped: this harness has no worker processes");
        return None;
    };
    Some((scene, child))
}
