//! What happened, line by line: each process appends to a file of its own, and the checker reads them all.
//!
//! A member records a delivery before it acks it. So everything acked is in a history, even of a killed member: a
//! kill loses nothing that was handed to the operating system.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

/// An event in a consumer process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemberEvent {
    /// A message was delivered to it.
    Delivered { token: i64, offset: i64, id: String, at_us: u64 },
    /// The store confirmed the ack of these offsets of a lease.
    Acked { token: i64, first: i64, last: i64, at_us: u64 },
    /// The store refused to settle: the lease had moved on.
    Refused { token: i64, at_us: u64 },
    /// A handler of a running consumer began; its lease is not known to the handler.
    Began { offset: i64, id: String, at_us: u64 },
    /// It succeeded; 0, or the number of the transaction that settles it with others when it commits.
    Ended { id: String, transaction: i64, at_us: u64 },
}

impl MemberEvent {
    fn line(&self) -> String {
        match self {
            MemberEvent::Delivered { token, offset, id, at_us } => format!("D {token} {offset} {id} {at_us}"),
            MemberEvent::Acked { token, first, last, at_us } => format!("A {token} {first} {last} {at_us}"),
            MemberEvent::Refused { token, at_us } => format!("L {token} {at_us}"),
            MemberEvent::Began { offset, id, at_us } => format!("B {offset} {id} {at_us}"),
            MemberEvent::Ended { id, transaction, at_us } => format!("E {id} {transaction} {at_us}"),
        }
    }

    fn parse(line: &str) -> Result<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        Ok(match fields.as_slice() {
            ["D", token, offset, id, at_us] => MemberEvent::Delivered {
                token: token.parse()?,
                offset: offset.parse()?,
                id: (*id).to_owned(),
                at_us: at_us.parse()?,
            },
            ["A", token, first, last, at_us] => MemberEvent::Acked {
                token: token.parse()?,
                first: first.parse()?,
                last: last.parse()?,
                at_us: at_us.parse()?,
            },
            ["L", token, at_us] => MemberEvent::Refused { token: token.parse()?, at_us: at_us.parse()? },
            ["B", offset, id, at_us] => {
                MemberEvent::Began { offset: offset.parse()?, id: (*id).to_owned(), at_us: at_us.parse()? }
            }
            ["E", id, transaction, at_us] => MemberEvent::Ended {
                id: (*id).to_owned(),
                transaction: transaction.parse()?,
                at_us: at_us.parse()?,
            },
            _ => bail!("not a history line: {line:?}"),
        })
    }
}

/// Appends events to a member's file.
#[derive(Debug)]
pub(crate) struct Recorder(BufWriter<File>);

impl Recorder {
    /// Opens a new file; each incarnation of a member has its own.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create_new(path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Recorder(BufWriter::with_capacity(1 << 20, file)))
    }

    /// Records events and hands them to the operating system before it returns.
    pub(crate) fn record(&mut self, events: &[MemberEvent]) -> Result<()> {
        for event in events {
            writeln!(self.0, "{}", event.line())?;
        }
        Ok(self.0.flush()?)
    }
}

/// Reads a member's file. A last line without its end was cut by a kill and never led to an ack.
pub(crate) fn read_member(path: &Path) -> Result<Vec<MemberEvent>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    whole.lines().map(MemberEvent::parse).collect()
}

/// The machine's clock in microseconds; publishers and members run on one machine.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_the_file_and_a_cut_line_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("member");
        let events = [
            MemberEvent::Delivered { token: 3, offset: 40, id: "p1-2".into(), at_us: 9 },
            MemberEvent::Acked { token: 3, first: 40, last: 41, at_us: 10 },
            MemberEvent::Refused { token: 4, at_us: 11 },
            MemberEvent::Began { offset: 42, id: "p1-3".into(), at_us: 12 },
            MemberEvent::Ended { id: "p1-3".into(), transaction: 7, at_us: 13 },
        ];
        Recorder::create(&path).unwrap().record(&events).unwrap();
        assert_eq!(read_member(&path).unwrap(), events);
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("D 5 42 p1-");
        std::fs::write(&path, text).unwrap();
        assert_eq!(read_member(&path).unwrap(), events);
    }
}
