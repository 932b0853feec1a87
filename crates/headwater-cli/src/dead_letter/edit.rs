//! Redriving an edited copy of a dead letter.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use headwater::Headwater;
use headwater::store::{DeadLetter, FoundDeadLetter};
use serde_json::json;

use crate::args::{DeadLetterRedriveArgs, Global};
use crate::output::{Rows, Usage};

pub(super) async fn replace(
    global: &Global,
    headwater: &Headwater,
    args: &DeadLetterRedriveArgs,
) -> Result<()> {
    let [id] = args.these.filter.ids[..] else {
        return Err(Usage("--payload and --edit change one dead letter: name it with one --id".into()).into());
    };
    let FoundDeadLetter { topic, group, dead_letter } = super::find(headwater, &args.these.of, id).await?;
    let payload = match &args.payload {
        Some(payload) => payload.clone().into_bytes(),
        None => edited(&dead_letter)?,
    };
    if payload == dead_letter.payload[..] {
        bail!("the payload is unchanged, nothing was done; redrive it without --payload and --edit");
    }
    let mut copy = dead_letter.to_message();
    copy.payload = payload.into();
    let letters = headwater.dead_letters().of(topic.as_str(), group.as_str());
    let published = letters.replace(id, copy, args.all_groups).await?;
    let mut rows = Rows::new(&["topic", "group", "from", "offset", "message_id"]);
    rows.push(vec![
        json!(topic.as_str()),
        json!(group.as_str()),
        json!(dead_letter.offset.0),
        json!(published.offset.map(|offset| offset.0)),
        json!(published.message_id),
    ]);
    rows.print(global.output)
}

/// What the editor makes of the payload.
fn edited(dead_letter: &DeadLetter) -> Result<Vec<u8>> {
    let folder = tempfile::tempdir().context("no temporary directory for the editor")?;
    let extension =
        if dead_letter.content_type.as_deref() == Some("application/json") { "json" } else { "txt" };
    let path = folder.path().join(format!("payload.{extension}"));
    let mut file = std::fs::File::create(&path)?;
    file.write_all(&dead_letter.payload)?;
    file.sync_all()?;
    edit(&path)?;
    let mut payload = std::fs::read(&path)?;
    // Editors end the last line; a payload without an end of line keeps none.
    if payload.ends_with(b"\n") && !dead_letter.payload.ends_with(b"\n") {
        payload.pop();
    }
    Ok(payload)
}

fn edit(path: &Path) -> Result<()> {
    let editor = ["VISUAL", "EDITOR"].iter().find_map(|name| std::env::var(name).ok());
    let editor = editor.unwrap_or_else(|| "vi".into());
    // By a shell, because the variable may have arguments; the path is one of them and needs no quoting.
    let status =
        Command::new("sh").args(["-c", &format!("{editor} \"$1\""), "sh"]).arg(path).status().with_context(
            || format!("the editor {editor} cannot be started; set $EDITOR, or use --payload"),
        )?;
    if !status.success() {
        bail!("the editor {editor} failed, nothing was changed");
    }
    Ok(())
}
