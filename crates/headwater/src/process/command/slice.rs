//! A slice of commands in one transaction: handlers run one after the other without savepoints, and one statement for each
//! topic publishes the replies.
//!
//! A command that is not carried out refuses the slice: what its handler wrote has to be undone alone, which takes a savepoint.
//! So does a compensation together with a command that it undoes. It has to find out whether that command has run, and the
//! inbox entries of a slice exist before its messages are handled.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, try_join_all};
use uuid::Uuid;

use super::{Commands, Kind, StepError, never_ran};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Bury, Context, Failure, HandleSlice, Messages, OpenSlice};
use crate::message::NewMessage;
use crate::observe::trace;
use crate::process::message::{self, Command};
use crate::process::turn::Reply;
use crate::settle::Verdict;
use crate::transaction::Transaction;

impl HandleSlice for Commands {
    fn begin(
        self: Arc<Self>,
        _: Transaction,
        messages: Messages,
        fresh: Vec<usize>,
    ) -> BoxFuture<'static, Result<Arc<dyn OpenSlice>>> {
        let ids: HashSet<Uuid> = fresh.iter().map(|at| messages[*at].message_id).collect();
        let undoes_another =
            fresh.iter().filter_map(|at| message::undone_by(&messages[*at])).any(|id| ids.contains(&id));
        let open: Result<Arc<dyn OpenSlice>> = if undoes_another {
            Err(Error::new(
                ErrorKind::Conflict,
                "a compensation is in one slice with the command that it undoes",
            ))
        } else {
            Ok(Arc::new(CommandSlice { commands: self, replies: Mutex::default() }))
        };
        std::future::ready(open).boxed()
    }
}

struct CommandSlice {
    commands: Arc<Commands>,
    /// By topic, in their order. There are few topics.
    replies: Mutex<Vec<(String, Vec<NewMessage>)>>,
}

impl OpenSlice for CommandSlice {
    fn handle(self: Arc<Self>, tx: Transaction, context: Context) -> BoxFuture<'static, Verdict> {
        let handling = async move { self.carry_out(&tx, &context).await };
        handling.map(|done| done.map_or_else(Failure::into_verdict, |()| Verdict::Done)).boxed()
    }

    fn finish(self: Arc<Self>, tx: Transaction) -> BoxFuture<'static, Result<()>> {
        let replies = std::mem::take(&mut *self.replies.lock().expect("no panic while held"));
        async move {
            let published = replies.into_iter().map(|(topic, replies)| {
                let tx = &tx;
                async move { tx.publish_all(&topic, replies).await }
            });
            try_join_all(published).await.map(drop)
        }
        .boxed()
    }
}

impl CommandSlice {
    async fn carry_out(&self, tx: &Transaction, context: &Context) -> Result<(), Failure> {
        let message = context.message();
        let command =
            Command::read(message).map_err(|why| Bury(format!("not a command of a process: {why}")))?;
        let (id, undoes) = (command.process_id(), command.undoes());
        let reply = match self.commands.0.get(command.name()) {
            None => super::without_handler(context, &command),
            Some(_) if never_ran(tx, context, undoes).await? => Reply::Completed(None),
            Some(handler) => match handler(tx.clone(), command).await {
                Ok(result) => Reply::Completed(result),
                Err(StepError(Kind::Reported { error, .. })) => return Err(error.into()),
                Err(StepError(Kind::Broken(failure))) => return Err(failure),
            },
        };
        let (topic, mut answer) = message::reply(message, id, &reply)?;
        // While its trace is the current one.
        trace::inject(&mut answer);
        let mut replies = self.replies.lock().expect("no panic while held");
        match replies.iter_mut().find(|(other, _)| *other == topic) {
            Some((_, answers)) => answers.push(answer),
            None => replies.push((topic, vec![answer])),
        }
        Ok(())
    }
}
