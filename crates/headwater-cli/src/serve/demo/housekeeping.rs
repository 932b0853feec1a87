//! Removes what retention does not: dead letters are kept until a person decides, and in the demo none may come for days.

use std::time::Duration;

use headwater::{Headwater, Result};
use jiff::Timestamp;
use tokio::sync::watch;

use super::traffic::{Ticks, report};

/// How often old dead letters are removed. Seldom: each time is an audit entry.
const TIDY_EVERY: Duration = Duration::from_secs(1_800);
/// How long a dead letter of the demo is kept.
const DEAD_LETTERS_KEPT: Duration = Duration::from_secs(3 * 3_600);

/// Until stopped.
pub(super) async fn run(headwater: Headwater, stopped: watch::Receiver<bool>) {
    let mut ticks = Ticks::new(TIDY_EVERY, stopped);
    while ticks.next().await {
        report("removal of dead letters", tidy(&headwater).await);
    }
}

async fn tidy(headwater: &Headwater) -> Result<()> {
    let before = Timestamp::now() - DEAD_LETTERS_KEPT;
    let email = headwater.dead_letters().of("orders", "email");
    if email.count_of(|all| all.buried_before(before)).await?.redriven > 0 {
        email.purge(|all| all.buried_before(before)).await?;
    }
    Ok(())
}
