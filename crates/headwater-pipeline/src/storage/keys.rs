//! The names of files.

use crate::error::{Error, Result};

/// Longest run id: that of a namespace.
const RUN_BYTES_MAX: usize = 48;

/// Refuses a run id that is no folder name: it comes from messages and names files.
pub(crate) fn check_run(run_id: &str) -> Result<()> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if run_id.starts_with(|first: char| first.is_ascii_alphabetic())
        && run_id.len() <= RUN_BYTES_MAX
        && run_id.bytes().all(is_allowed)
    {
        return Ok(());
    }
    let rule = format!("a letter and up to {} of a-z, A-Z, 0-9, _ and - are expected", RUN_BYTES_MAX - 1);
    Err(Error::invalid(format!("run id {run_id:?}: {rule}")))
}

pub(super) fn metadata(run_id: &str) -> String {
    format!("{run_id}/metadata.pb")
}

/// `copy` is the hash of a batch that differs from another one of the same range.
pub(super) fn batch(run_id: &str, first: i64, last: i64, copy: Option<u64>, is_compressed: bool) -> String {
    let copy = copy.map_or(String::new(), |hash| format!("_{hash:016x}"));
    let end = if is_compressed { ".pb.zst" } else { ".pb" };
    format!("{run_id}/raw/batch_{first:019}_{last:019}{copy}{end}")
}

/// The folder of batch files.
pub(super) fn batches(run_id: &str) -> String {
    format!("{run_id}/raw/")
}

/// The folder of payloads that were too large for a message.
pub(crate) fn claims(run_id: &str) -> String {
    format!("{run_id}/claims/")
}

/// Whether the content of a file is compressed as a whole.
pub(super) fn is_compressed(key: &str) -> bool {
    key.ends_with(".zst")
}

/// The first and last tick in the name of a batch file of this run; `None` of another file.
pub(super) fn ticks_of(run_id: &str, key: &str) -> Option<(i64, i64)> {
    let name = key.strip_prefix(&batches(run_id))?.strip_prefix("batch_")?;
    let name = name.strip_suffix(".zst").unwrap_or(name).strip_suffix(".pb")?;
    let mut parts = name.split('_');
    let mut number = || {
        let digits =
            parts.next().filter(|part| part.len() == 19 && part.bytes().all(|b| b.is_ascii_digit()))?;
        digits.parse::<i64>().ok()
    };
    let ticks = (number()?, number()?);
    let is_hash = |part: &str| part.len() == 16 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    (parts.next().is_none_or(is_hash) && parts.next().is_none() && ticks.0 <= ticks.1).then_some(ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_like_ticks_and_are_read_back() {
        let key = batch("run_1", 7, 1_006, None, false);
        assert_eq!(key, "run_1/raw/batch_0000000000000000007_0000000000000001006.pb");
        assert!(key < batch("run_1", 10, 10, None, false));
        assert!(batch("run_1", 10, 10, None, false) < batch("run_1", i64::MAX, i64::MAX, None, false));
        for (copy, is_zst) in [(None, false), (None, true), (Some(0xab), false), (Some(u64::MAX), true)] {
            let key = batch("run_1", 7, i64::MAX, copy, is_zst);
            assert_eq!(
                (ticks_of("run_1", &key), is_compressed(&key)),
                (Some((7, i64::MAX)), is_zst),
                "{key}"
            );
            assert_eq!(ticks_of("run_2", &key), None);
        }
    }

    #[test]
    fn other_files_are_no_batches() {
        for other in [
            "run_1/metadata.pb",
            "run_1/raw/batch_7_8.pb",
            "run_1/raw/batch_0000000000000000007_0000000000000001006",
            "run_1/raw/batch_0000000000000000007_0000000000000001006_12.pb",
            "run_1/raw/batch_0000000000000000009_0000000000000000008.pb",
            "run_1/raw/batch_9999999999999999999_9999999999999999999.pb",
            "run_1/derived/batch_0000000000000000007_0000000000000001006.pb",
            "run_1/raw/x/batch_0000000000000000007_0000000000000001006.pb",
        ] {
            assert_eq!(ticks_of("run_1", other), None, "{other}");
        }
    }

    #[test]
    fn run_ids_that_are_no_folder_names_are_refused() {
        for good in ["r", "run_20251014_143025_550e8400e29b", "Run-7", &"x".repeat(48)] {
            check_run(good).unwrap();
        }
        for bad in ["", " ", "7", "_x", "a/b", "..", "a b", "a.b", "ä", &"x".repeat(49)] {
            let error = check_run(bad).unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}: a letter and up to 47")), "{error}");
        }
    }
}
