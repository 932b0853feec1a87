//! Which member of a group gets which message of a lease, and in which slices.

use std::sync::Arc;

use super::group::Group;
use super::member::{Member, Members, Route};
use super::queue::{Kind, Slice};
use super::work::LeaseWork;
use crate::handler::{Call, Handler, Messages};
use crate::message::Message;
use crate::settle::{Outcome, Verdict, WaitingKeys};

impl Group {
    /// Splits a view of messages into slices. True if the lease is finished by that: everything was filtered out.
    pub(super) fn route(
        &self,
        work: &Arc<LeaseWork>,
        members: &Arc<Members>,
        messages: &Messages,
        slices: &mut Vec<Slice>,
    ) -> bool {
        if self.settings.filter.is_none()
            && let Some(only) = members.only()
        {
            self.cut(work, only, messages.clone(), slices);
            return false;
        }
        let mut picked: Vec<Vec<Message>> = vec![Vec::new(); members.0.len()];
        let mut ended = false;
        // A message whose filter fails waits for its retry, and in a lane later messages of its key wait with it.
        let mut waiting = WaitingKeys::of(&work.lease, &work.policy);
        for message in messages {
            if let Some(key) = message.key.as_ref().filter(|_| waiting.hold(message)) {
                ended |= work.finish(message.offset, Outcome::Park { key: key.clone() });
                continue;
            }
            match self.route_one(members, message) {
                Route::To(member) => picked[member].push(message.clone()),
                Route::Filtered => {
                    self.metrics.filtered.add(1);
                    ended |= work.finish(message.offset, Outcome::Ack);
                }
                Route::Broken(error) => {
                    let messages = std::slice::from_ref(message);
                    let call = Call { messages, attempt: work.lease.attempt, member: None };
                    let verdict = self.guard.judged(call, Verdict::Failed(error), &work.policy);
                    waiting.said(message, &verdict);
                    ended |= self.fail(work, call, verdict);
                }
            }
        }
        if work.lease.lane.is_some() {
            // Order is per key and not per member: one worker handles all of them in sequence.
            let mut whose: Vec<(Message, usize)> = picked
                .into_iter()
                .enumerate()
                .flat_map(|(at, picked)| picked.into_iter().map(move |m| (m, at)))
                .collect();
            whose.sort_by_key(|(message, _)| message.offset);
            if !whose.is_empty() {
                let each = whose.iter().map(|(_, at)| Arc::clone(&members.0[*at])).collect();
                let messages: Vec<Message> = whose.into_iter().map(|(message, _)| message).collect();
                slices.push(Slice::mixed(Arc::clone(work), each, messages.into()));
            }
            return ended;
        }
        for (member, picked) in members.0.iter().zip(picked) {
            if !picked.is_empty() {
                self.cut(work, member, picked.into(), slices);
            }
        }
        ended
    }

    fn route_one(&self, members: &Members, message: &Message) -> Route {
        if let Some(filter) = &self.settings.filter {
            let wanted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| filter(message)));
            match wanted {
                Ok(true) => {}
                Ok(false) => return Route::Filtered,
                Err(panic) => {
                    let said = crate::error::panic_text(&*panic);
                    return Route::Broken(format!("the group's filter panicked: {said}"));
                }
            }
        }
        members.route(message)
    }

    /// Records a message that failed before any handler got it.
    fn fail(&self, work: &LeaseWork, call: Call<'_>, verdict: Verdict) -> bool {
        let message = &call.messages[0];
        let mut outcome = self.guard.decide_one(call, verdict, &work.policy);
        // In a lane later messages of the key wait for it.
        if let Some(own) = message.key.as_ref().filter(|_| work.lease.lane.is_some()) {
            outcome.hold_key(own);
        }
        work.finish(message.offset, outcome)
    }

    fn cut(&self, work: &Arc<LeaseWork>, member: &Arc<Member>, messages: Messages, slices: &mut Vec<Slice>) {
        let slice = |messages, kind| Slice::new(Arc::clone(work), Arc::clone(member), messages, kind);
        if work.lease.lane.is_some() {
            // In strict order, by one worker; a batch handler gets it in batches.
            slices.push(slice(messages, Kind::Whole));
        } else if matches!(member.handler, Handler::One(_)) {
            slices.push(slice(messages, Kind::Singles));
        } else {
            let mut from = 0;
            while from < messages.len() {
                let to = messages.len().min(from + self.settings.batch);
                slices.push(slice(messages.part(from..to), Kind::Whole));
                from = to;
            }
        }
    }
}
