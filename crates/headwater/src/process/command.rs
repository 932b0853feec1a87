//! The other side of a process: a handler that carries out its commands, each once.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use uuid::Uuid;

use super::data::ProcessData;
use super::message::{self, Command};
use super::turn::Reply;
use crate::error::Result;
use crate::handler::{Bury, Context, Failure, HandlerResult, Handling};
use crate::message::Message;
use crate::store::repository::Verb;
use crate::transaction::{Transaction, Value};

mod slice;

type Handler =
    dyn Fn(Transaction, Command) -> BoxFuture<'static, Result<Option<ProcessData>, StepError>> + Send + Sync;

/// Handlers of commands, by their names: for a consumer of a topic that steps of processes name.
///
/// A handler runs in a transaction of the store, and its effect, the reply, the inbox entry and the ack commit together. So a
/// command has its effect once, however often it is sent or delivered. What a handler does elsewhere, such as a call of
/// another service, happens at least once; the [id](Command::id) of the command is the idempotency key for that.
///
/// Commands that are delivered together are carried out in one transaction. If one of them is not carried out, or its handler
/// panics or takes too long, the transaction is rolled back and each is carried out alone, with a savepoint: handlers then run
/// once more, and what they did before has had no effect in the database.
///
/// | the handler returns | and the step |
/// |---|---|
/// | `Ok(value)` | is completed; the members of the value, an object or nothing, are added to the data of the process |
/// | [`StepError::failed`] | has failed, and is not tried again; nothing that the handler wrote is kept |
/// | [`StepError::retry`] | has failed, and is tried again as its declaration says; nothing that the handler wrote is kept |
/// | any other error, by `?` | does not end: the message is retried by the group's policy, and becomes a dead letter at last |
///
/// A command without a handler fails its step. A message that is no command becomes a dead letter.
///
/// A compensation is called only if the command that it undoes has run: it enters the inbox entry of that command first, and
/// if that was absent, the command will never run. Both have to be handled by the same group, which is why a compensation is
/// sent to the topic of its step.
///
/// ```
/// use headwater::process::{Command, Commands, StepError};
/// use headwater::transaction::Transaction;
///
/// let stock = Commands::new()
///     .on("Reserve", |tx: Transaction, command: Command| async move {
///         let taken = tx.execute("UPDATE shelf SET pieces = pieces - 1 WHERE id = 4 AND pieces > 0", ()).await?;
///         if taken == 0 {
///             return Err(StepError::failed("out of stock"));
///         }
///         println!("a piece for {}", command.process_id());
///         Ok(serde_json::json!({ "shelf": 4 }))
///     })
///     .on("Release", |tx: Transaction, _: Command| async move {
///         tx.execute("UPDATE shelf SET pieces = pieces + 1 WHERE id = 4", ()).await?;
///         Ok(())
///     })
///     .handling();
/// # let _ = stock;
/// ```
#[derive(Clone, Default)]
pub struct Commands(HashMap<String, Arc<Handler>>);

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Commands {
    /// No handler yet.
    pub fn new() -> Self {
        Commands::default()
    }

    /// Adds the handler of a command.
    #[must_use]
    pub fn on<T, H, F>(mut self, command: &str, handler: H) -> Self
    where
        T: Serialize,
        H: Fn(Transaction, Command) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, StepError>> + Send + 'static,
    {
        let handler: Arc<Handler> = Arc::new(move |tx: Transaction, command: Command| {
            let handling = handler(tx, command);
            async move { result_of(&handling.await?) }.boxed()
        });
        self.0.insert(command.to_owned(), handler);
        self
    }

    /// A member that carries them out.
    pub fn handling(self) -> Handling {
        let commands = Arc::new(self);
        let whole = Arc::clone(&commands);
        let handling = Handling::transactional(move |tx: Transaction, message: Message, context: Context| {
            let commands = Arc::clone(&commands);
            async move { commands.handle(&tx, &message, &context).await }
        });
        handling.slices(whole)
    }

    async fn handle(&self, tx: &Transaction, message: &Message, context: &Context) -> HandlerResult {
        let command =
            Command::read(message).map_err(|why| Bury(format!("not a command of a process: {why}")))?;
        let (id, undoes) = (command.process_id(), command.undoes());
        let reply = if let Some(handler) = self.0.get(command.name()) {
            if never_ran(tx, context, undoes).await? {
                // Nothing to undo, and now there never will be.
                Reply::Completed(None)
            } else {
                carry_out(tx, handler(tx.clone(), command)).await?
            }
        } else {
            without_handler(context, &command)
        };
        let (topic, answer) = message::reply(message, id, &reply)?;
        tx.publish(&topic, answer).await?;
        Ok(())
    }
}

fn without_handler(context: &Context, command: &Command) -> Reply {
    let error = format!("group {} has no handler of command {}", context.group(), command.name());
    Reply::Failed { error, retryable: false }
}

/// Whether the undone command has no inbox entry. It has one from now on.
async fn never_ran(tx: &Transaction, context: &Context, undoes: Option<Uuid>) -> Result<bool> {
    let Some(undoes) = undoes else { return Ok(false) };
    let now = tx.time_of(None).await?;
    let params: Vec<Value> = vec![undoes.to_string().into(), context.inbox_name().into(), now];
    Ok(!tx.rows_of(Verb::ProcessEnter, params).await?.is_empty())
}

/// Runs a handler and keeps what it wrote, unless it reports that it failed: the reply that says so is kept alone.
async fn carry_out(
    tx: &Transaction,
    handling: BoxFuture<'static, Result<Option<ProcessData>, StepError>>,
) -> Result<Reply, Failure> {
    const SAVEPOINT: &str = "SAVEPOINT headwater_command";
    const RELEASE: &str = "RELEASE SAVEPOINT headwater_command";
    const ROLLBACK: &str = "ROLLBACK TO SAVEPOINT headwater_command";
    tx.execute(SAVEPOINT, ()).await?;
    match handling.await {
        Ok(result) => {
            tx.execute(RELEASE, ()).await?;
            Ok(Reply::Completed(result))
        }
        Err(StepError(Kind::Reported { error, retryable })) => {
            // A statement that failed fails the message, whatever the handler made of it, and on both databases.
            tx.query("SELECT 1", ()).await?;
            tx.execute(ROLLBACK, ()).await?;
            tx.execute(RELEASE, ()).await?;
            Ok(Reply::Failed { error, retryable })
        }
        Err(StepError(Kind::Broken(failure))) => Err(failure),
    }
}

/// What a handler returned, as data: nothing, or an object.
fn result_of<T: Serialize>(value: &T) -> Result<Option<ProcessData>, StepError> {
    let text = serde_json::to_string(value)?;
    if text == "null" { Ok(None) } else { Ok(Some(ProcessData::from_json(text)?)) }
}

/// Why a command was not carried out. Made from any error by `?`.
pub struct StepError(Kind);

enum Kind {
    /// Reported to the process.
    Reported { error: String, retryable: bool },
    /// The message fails, and is retried.
    Broken(Failure),
}

impl StepError {
    /// The step has failed, and another attempt would fail as well.
    pub fn failed(error: impl fmt::Display) -> Self {
        StepError(Kind::Reported { error: error.to_string(), retryable: false })
    }

    /// The step has failed, and another attempt may succeed.
    pub fn retry(error: impl fmt::Display) -> Self {
        StepError(Kind::Reported { error: error.to_string(), retryable: true })
    }
}

impl fmt::Debug for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Reported { error, retryable } => write!(f, "StepError({error:?}, retryable: {retryable})"),
            Kind::Broken(failure) => write!(f, "StepError({failure:?})"),
        }
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for StepError {
    fn from(error: E) -> Self {
        StepError(Kind::Broken(Failure::from(error)))
    }
}
