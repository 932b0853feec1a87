//! Takeover: an owner proves with a file lock that its process is alive; the leases of owners whose lock the kernel
//! has released end at once.
//!
//! Why no living process loses a lease this way. Each proof is a file with a random name, and only its creator keeps
//! it locked: once another process gets the lock, the creator ended or closed its store. The lock belongs to the open
//! file: unlike a POSIX lock it is not released by closing another descriptor, and a stopped process keeps it. A file
//! that is missing or cannot be opened proves nothing, and its owner is judged by its heartbeats alone. So is an
//! owner that could not create its file.
//!
//! SQLite's own files are never opened here: closing one would release the locks of its connections.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::fault::Attempt;
use super::trust::beside;
use super::work::{Kind, Work};
use super::{SqliteStore, decode, heartbeat};
use crate::error::Result;
use crate::limits::WATCHED_OWNERS_MAX;
use crate::name::Owner;

/// The infix in the names of proof files, between the store's name and the random part.
const INFIX: &str = "-owner-";

/// The proofs of a store's owners; `None` for a proof that could not be created.
#[derive(Debug, Default)]
pub(super) struct Proofs(Mutex<HashMap<Owner, Option<Proof>>>);

/// A file that stays locked until this is dropped.
#[derive(Debug)]
struct Proof {
    name: String,
    path: PathBuf,
    _locked: File,
}

impl Proofs {
    /// Releases every lock. The files stay for the processes that take over.
    pub(super) fn release(&self) {
        self.0.lock().expect("no panic while held").clear();
    }

    /// Releases and removes the proof of an owner that leaves on purpose.
    pub(super) fn forget(&self, owner: &Owner) {
        if let Some(Some(proof)) = self.0.lock().expect("no panic while held").remove(owner) {
            // A file that stays is removed later, with the files that killed processes left.
            let _ = std::fs::remove_file(&proof.path);
        }
    }

    /// The name of the owner's proof, which is created if there is none.
    fn name_of(&self, owner: &Owner, store: &Path, connection: &Connection) -> Attempt<Option<String>> {
        let mut proofs = self.0.lock().expect("no panic while held");
        let proof = match proofs.entry(owner.clone()) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(free) => {
                remove_left(store, |name| is_named(connection, name))?;
                let made = Proof::make(store).inspect_err(|error| {
                    tracing::warn!(%error, "lock file not created, process end found by missing heartbeats");
                });
                free.insert(made.ok())
            }
        };
        Ok(proof.as_ref().map(|proof| proof.name.clone()))
    }
}

impl Proof {
    fn make(store: &Path) -> std::io::Result<Self> {
        loop {
            let name = Uuid::now_v7().simple().to_string();
            let path = path_of(store, &name);
            let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            match file.try_lock() {
                // Before it was locked, another process may have taken it for a leftover file and removed it.
                Ok(()) if path.exists() => return Ok(Proof { name, path, _locked: file }),
                Ok(()) | Err(std::fs::TryLockError::WouldBlock) => {}
                Err(std::fs::TryLockError::Error(error)) => {
                    let _ = std::fs::remove_file(&path);
                    return Err(error);
                }
            }
        }
    }
}

fn path_of(store: &Path, name: &str) -> PathBuf {
    beside(store, &format!("{INFIX}{name}"))
}

/// The lock of a file that its process has released; `None` while the lock is held, or if that is unknown.
fn released(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    file.try_lock().ok().map(|()| file)
}

/// Removes the files that killed processes left, except those that an owner's row still names.
pub(super) fn remove_left(store: &Path, is_named: impl Fn(&str) -> Attempt<bool>) -> Attempt<()> {
    let prefix = path_of(store, "");
    let (Some(directory), Some(prefix)) = (store.parent(), prefix.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(());
    };
    // A file that cannot be listed or removed stays: it takes no space and does no harm.
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let Some(name) = file_name.to_str().and_then(|name| name.strip_prefix(prefix)) else { continue };
        // Locked until it is removed: a file that is being created is not taken for a leftover one.
        if !is_named(name)?
            && let Some(_locked) = released(&entry.path())
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

fn is_named(connection: &Connection, name: &str) -> Attempt<bool> {
    let mut statement = connection.prepare_cached(super::sql!(take_over.named))?;
    Ok(statement.query_row([name], |row| row.get(0))?)
}

/// The result of the read: what is to be written.
struct Found {
    /// The owner's own proof, if its row has another one or none.
    unproven: Option<String>,
    ended: Vec<Ended>,
}

/// An owner whose process has ended. The lock is held until its leases have ended, so that no other process takes
/// over meanwhile.
struct Ended {
    owner: String,
    proof: String,
    path: PathBuf,
    _locked: File,
}

pub(super) async fn take_over(store: &SqliteStore, owner: &Owner) -> Result<u64> {
    // In memory there is no other process.
    let Some(path) = store.trust.resolved().map(Path::to_owned) else { return Ok(0) };
    let (own, proofs) = (owner.clone(), Arc::clone(&store.proofs));
    let found = store.read(move |connection| find(connection, &path, &own, &proofs)).await?;
    if let Some(proof) = found.unproven {
        let own = owner.clone();
        let prove = move |work: &mut Work<'_>| {
            let mut statement = work.connection.prepare_cached(super::sql!(take_over.prove))?;
            Ok(statement.execute(params![own.as_str(), proof])?)
        };
        store.write(Kind::Consume, prove).await?;
    }
    let mut leases = 0;
    for Ended { owner, proof, path, _locked } in found.ended {
        leases += store.write(Kind::Consume, move |work| end(work, &owner, &proof)).await?;
        // Not earlier: until then it shows other processes that the owner's process has ended.
        let _ = std::fs::remove_file(&path);
    }
    Ok(leases)
}

/// Reads only; an owner without a heartbeat proves nothing.
fn find(connection: &Connection, store: &Path, owner: &Owner, proofs: &Proofs) -> Attempt<Found> {
    let stored = proof_of(connection, owner.as_str())?;
    let unproven = match stored {
        Some(stored) => {
            let own = proofs.name_of(owner, store, connection)?;
            own.filter(|own| stored.as_ref() != Some(own))
        }
        None => None,
    };
    let mut statement = connection.prepare_cached(super::sql!(take_over.others))?;
    let others: Vec<(String, String)> =
        decode::all(&mut statement, params![owner.as_str(), WATCHED_OWNERS_MAX], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    let ended = others.into_iter().filter_map(|(owner, proof)| {
        let path = path_of(store, &proof);
        released(&path).map(|locked| Ended { owner, proof, path, _locked: locked })
    });
    Ok(Found { unproven, ended: ended.collect() })
}

/// The proof in an owner's row; the outer `None` if there is no row.
fn proof_of(connection: &Connection, owner: &str) -> Attempt<Option<Option<String>>> {
    let mut statement = connection.prepare_cached(super::sql!(take_over.proof))?;
    Ok(statement.query_row([owner], |row| row.get(0)).optional()?)
}

fn end(work: &mut Work<'_>, owner: &str, proof: &str) -> Attempt<u64> {
    if proof_of(work.connection, owner)?.flatten().as_deref() != Some(proof) {
        return Ok(0);
    }
    let leases = heartbeat::end_leases(work, owner)?;
    tracing::warn!(owner, leases, "owner's process ended, leases ended");
    Ok(leases)
}
