//! `headwater token`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use headwater::Headwater;
use headwater::tokens::{IssuedToken, NewToken, Scope, Token};
use jiff::Timestamp;
use serde_json::json;

use crate::args::{
    Global, Output, TokenCommand, TokenCreateArgs, TokenOne, TokenRevokeArgs, TokenRotateArgs,
};
use crate::output::{Fields, Rows, note, print_objects};
use crate::{confirm, suggest};

pub(crate) async fn run(global: &Global, command: &TokenCommand) -> Result<ExitCode> {
    // Checked before the store is opened: a command refused for lack of confirmation has no effect at all.
    if let TokenCommand::Revoke(args) = command {
        confirm::require("token revoke", args.confirmation)?;
    }
    // A server that other machines reach needs a token before its first start.
    let headwater = match command {
        TokenCommand::Create(_) => global.create(global.options()).await?,
        _ => global.open(global.options()).await?,
    };
    let done = match command {
        TokenCommand::Create(args) => create(global, &headwater, args).await,
        TokenCommand::List(_) => list(global, &headwater).await,
        TokenCommand::Rotate(args) => rotate(global, &headwater, args).await,
        TokenCommand::Revoke(args) => revoke(global, &headwater, args).await,
    };
    headwater.close().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

async fn create(global: &Global, headwater: &Headwater, args: &TokenCreateArgs) -> Result<()> {
    let mut new = NewToken::new(&args.name);
    new.scopes.clone_from(&args.scope);
    new.topics.clone_from(&args.topic);
    new.expires_in = args.expires.duration();
    let issued = headwater.tokens().create(&new).await?;
    print_secret(global, headwater, &issued).await
}

async fn rotate(global: &Global, headwater: &Headwater, args: &TokenRotateArgs) -> Result<()> {
    let token = find(headwater, &args.one).await?;
    let issued = headwater.tokens().rotate(&token.id, args.grace).await?;
    print_secret(global, headwater, &issued).await
}

/// The secret on stdout, for a file or a variable; what to do with it is a note.
async fn print_secret(global: &Global, headwater: &Headwater, issued: &IssuedToken) -> Result<()> {
    let Some(record) = headwater.tokens().find(issued.id()).await? else {
        bail!("token {} was revoked meanwhile; create another one", issued.id());
    };
    let mut fields = as_fields(&record.token);
    fields.push("secret", json!(issued.secret()));
    fields.print(global.output)?;
    note("copy the secret now: only its hash is stored, and it is not shown again");
    Ok(())
}

async fn list(global: &Global, headwater: &Headwater) -> Result<()> {
    let tokens = headwater.tokens().list().await?;
    if global.output == Output::Json {
        return print_objects(tokens.iter().map(|token| as_fields(token).object()));
    }
    let now = headwater.tokens().now();
    let mut rows = Rows::new(&["name", "id", "scopes", "topics", "created_at", "expires_at", "state"]);
    for token in &tokens {
        rows.push(vec![
            json!(token.name),
            json!(token.id),
            json!(scopes(token)),
            json!(token.topics.join(", ")),
            json!(token.created_at),
            json!(token.expires_at),
            json!(state(token, now)),
        ]);
    }
    rows.print(global.output)
}

async fn revoke(global: &Global, headwater: &Headwater, args: &TokenRevokeArgs) -> Result<()> {
    let token = find(headwater, &args.one).await?;
    if !args.confirmation.yes {
        as_fields(&token).print(global.output)?;
        if args.confirmation.dry_run {
            return Ok(());
        }
        confirm::ask(&format!("revoke token {} and end its sessions?", token.name))?;
    }
    headwater.tokens().revoke(&token.id).await?;
    let mut rows = Rows::new(&["revoked", "id"]);
    rows.push(vec![json!(token.name), json!(token.id)]);
    rows.print(global.output)
}

/// By its name, or else by its id.
async fn find(headwater: &Headwater, one: &TokenOne) -> Result<Token> {
    let mut tokens = headwater.tokens().list().await?;
    let by_name = tokens.iter().position(|token| token.name == one.token);
    if let Some(at) = by_name.or_else(|| tokens.iter().position(|token| token.id == one.token)) {
        return Ok(tokens.swap_remove(at));
    }
    let meant = suggest::closest(&one.token, tokens.iter().map(|token| token.name.as_str()));
    let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    bail!("no such token: {}; see `headwater token list`{meant}", one.token)
}

fn as_fields(token: &Token) -> Fields {
    let mut fields = Fields::default();
    fields.push("id", json!(token.id));
    fields.push("name", json!(token.name));
    fields.said("scopes", json!(token.scopes), scopes(token));
    fields.said("topics", json!(token.topics), token.topics.join(", "));
    fields.push("created_at", json!(token.created_at));
    fields.push("rotated_at", json!(token.rotated_at));
    fields.push("old_until", json!(token.old_until));
    fields.push("expires_at", json!(token.expires_at));
    fields
}

fn scopes(token: &Token) -> String {
    token.scopes.iter().map(|scope| Scope::as_str(*scope)).collect::<Vec<_>>().join(", ")
}

fn state(token: &Token, now: Timestamp) -> &'static str {
    match token {
        Token { expires_at: Some(at), .. } if *at <= now => "expired",
        Token { old_until: Some(until), .. } if *until > now => "rotating",
        _ => "valid",
    }
}
