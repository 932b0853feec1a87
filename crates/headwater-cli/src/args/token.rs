//! Arguments of `token`.

use std::time::Duration;

use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use headwater::tokens::Scope;

use super::Watch;
use super::group::Confirmation;
use super::words::{Retention, duration, retention};

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token and print its secret, which is shown this once only
    ///
    /// The store keeps a hash of it. A token may do what its scopes say, on topics that match a pattern; a scope includes no other.
    ///
    /// Examples:
    ///   headwater token create shop --scope publish --topic 'orders*'
    ///   headwater token create mailer --scope consume --topic orders --expires 90d
    ///   headwater token create ann --scope publish,consume,read,admin
    #[command(verbatim_doc_comment)]
    Create(TokenCreateArgs),
    /// List tokens with their scopes and topics; no secret is known
    ///
    /// Example: headwater token list
    List(TokenListArgs),
    /// Give a token a new secret and print it; the old one stays valid for a while
    ///
    /// Servers need no restart: each notices within seconds.
    ///
    /// Example: headwater token rotate shop --grace 1h
    Rotate(TokenRotateArgs),
    /// Revoke a token: requests with it are refused, within seconds on every server
    ///
    /// On a terminal it shows the token and asks; elsewhere --yes is needed.
    ///
    /// Example: headwater token revoke shop --yes
    Revoke(TokenRevokeArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenCreateArgs {
    /// Its name, for people: of the program or person that uses it
    pub(crate) name: String,
    /// What it allows, separated by commas: publish, consume, read (messages and figures), admin (changes)
    #[arg(long, value_name = "SCOPE,...", value_delimiter = ',', value_parser = scope(), required = true)]
    pub(crate) scope: Vec<Scope>,
    /// Topics that it may use; * stands for any text; may be repeated
    #[arg(long, value_name = "PATTERN", default_value = "*")]
    pub(crate) topic: Vec<String>,
    /// After how long it expires
    #[arg(long, value_name = "DURATION", default_value = "forever", value_parser = expiry)]
    pub(crate) expires: Retention,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenListArgs {
    #[command(flatten)]
    pub(crate) watch: Watch,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenOne {
    /// Its name or its id, as listed
    pub(crate) token: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenRotateArgs {
    #[command(flatten)]
    pub(crate) one: TokenOne,
    /// How long the old secret stays valid
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub(crate) grace: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenRevokeArgs {
    #[command(flatten)]
    pub(crate) one: TokenOne,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

/// Refused here already: a token that is refused creates no store.
fn expiry(text: &str) -> Result<Retention, String> {
    match retention(text)? {
        limit if limit.duration() == Some(Duration::ZERO) => Err("must be longer than 0s".into()),
        limit => Ok(limit),
    }
}

fn scope() -> impl TypedValueParser<Value = Scope> {
    let parser = PossibleValuesParser::new(Scope::ALL.map(Scope::as_str));
    parser.try_map(|name| name.parse::<Scope>())
}
