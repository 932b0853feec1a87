//! Logs go to stderr, from warnings on, and have colours only on a terminal.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::args::Global;
use crate::output::Usage;
use crate::suggest;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// `level` is the command's own default.
pub(crate) fn start(global: &Global, level: &'static str) -> Result<(), Usage> {
    let level = match global {
        Global { quiet: true, .. } => "error",
        Global { verbose: 0, .. } => level,
        Global { verbose: 1, .. } => "info",
        _ => "debug",
    };
    let set = std::env::var("HEADWATER_LOG").ok().filter(|set| !set.trim().is_empty());
    // What is given on the command line takes precedence over the environment.
    let filter = match set {
        Some(set) if !global.quiet && global.verbose == 0 => parse(&set)?,
        _ => EnvFilter::new(level),
    };
    let colours = !global.no_color && colours_on_stderr();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    Ok(())
}

fn colours_on_stderr() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && std::io::stderr().is_terminal()
}

/// A level, or directives such as `headwater=debug`. A word that is neither would be the name of a module that does not exist.
fn parse(set: &str) -> Result<EnvFilter, Usage> {
    let wrong = |why: &str| {
        Usage(format!(
            "invalid HEADWATER_LOG {set:?}: {why}; write error, warn, info, debug or headwater=debug"
        ))
    };
    for word in set.split(',').map(str::trim).filter(|word| !word.contains(['=', '[', ':'])) {
        if !LEVELS.contains(&word.to_lowercase().as_str()) && !word.starts_with("headwater") {
            let meant = suggest::closest(word, LEVELS).map(|level| format!(", did you mean {level}?"));
            return Err(wrong(&format!("{word} is no level{}", meant.unwrap_or_default())));
        }
    }
    EnvFilter::try_new(set).map_err(|error| wrong(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_meant_is_refused() {
        for right in ["debug", "WARN", "headwater=debug", "info,headwater::store=trace", "headwater", "off"] {
            assert!(parse(right).is_ok(), "{right}");
        }
        for wrong in ["bogus=x=y", "debg", "headwater=loud"] {
            let refused = parse(wrong).unwrap_err().to_string();
            assert!(refused.starts_with("invalid HEADWATER_LOG"), "{refused}");
        }
        assert!(parse("debg").unwrap_err().to_string().contains("did you mean debug?"));
    }
}
