//! Topics: messages of one protobuf type, published and read.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use headwater::{Context, Headwater, Message, Producer, Start};

use super::reader::{Reader, Seen};
use super::{BindingHandle, UsageState, message_of, type_is};
use crate::config::ReadFrom;
use crate::error::{Error, ErrorCode, Result};
use crate::health::Counter;
use crate::resource::{Delivery, Handler, Reading, TopicReader, TopicWriter, Verdict};
use crate::runs::RunStore;

/// Publishes messages of one type to a topic.
pub(crate) struct TopicSender<T> {
    producer: Producer,
    binding: Arc<BindingHandle>,
    of: PhantomData<fn(T)>,
}

impl<T> TopicSender<T> {
    pub(crate) fn new(headwater: &Headwater, topic: &str, binding: Arc<BindingHandle>) -> Self {
        TopicSender { producer: headwater.producer(topic), binding, of: PhantomData }
    }
}

#[async_trait]
impl<T: prost::Name> TopicWriter<T> for TopicSender<T> {
    async fn send(&self, message: &T, dedup_key: &str) -> Result<()> {
        let message = message_of(message).dedup_key(dedup_key);
        let sending = async {
            let sent = self.producer.send(message).await;
            sent.map_err(|error| Error::from_store(ErrorCode::WriteFailed, &error))
        };
        self.binding.record("publish", sending).await?;
        self.binding.health().count(Counter::MessagesSent, 1);
        Ok(())
    }
}

/// Reads messages of one type as a member of a group.
pub(crate) struct TopicReceiver<T> {
    store: Arc<RunStore>,
    topic: String,
    group: String,
    start: Start,
    binding: Arc<BindingHandle>,
    of: PhantomData<fn() -> T>,
}

impl<T> TopicReceiver<T> {
    pub(crate) fn new(store: &Arc<RunStore>, topic: &str, group: &str, binding: Arc<BindingHandle>) -> Self {
        let start = match binding.config().start {
            ReadFrom::Beginning => Start::Beginning,
            ReadFrom::Now => Start::Now,
        };
        TopicReceiver {
            store: Arc::clone(store),
            topic: topic.to_owned(),
            group: group.to_owned(),
            start,
            binding,
            of: PhantomData,
        }
    }
}

#[async_trait]
impl<T: prost::Name + Default + 'static> TopicReader<T> for TopicReceiver<T> {
    async fn start(&self, concurrency: usize, handler: Arc<dyn Handler<T>>) -> Result<Box<dyn Reading>> {
        let seen = Arc::new(Seen::new(&self.store, &self.topic, &self.group, &self.binding));
        let calls = Arc::clone(&seen);
        let handle = move |message: Message, context: Context| {
            let (seen, handler) = (Arc::clone(&calls), Arc::clone(&handler));
            async move { call(&seen, &*handler, &message, &context).await }
        };
        let consumer = self
            .store
            .headwater
            .consumer(&self.topic, &self.group)
            .start_from(self.start)
            .concurrency(concurrency)
            // The first claim is no larger than what is handled at once: competing readers get the rest.
            .batch(u32::try_from(concurrency).unwrap_or(u32::MAX))
            .member(self.binding.service(), handle);
        match consumer.run().await {
            Ok(running) => {
                self.binding.set_state(UsageState::Waiting);
                Ok(Box::new(Reader::new(running, seen)))
            }
            Err(error) => {
                let error = Error::from_store(ErrorCode::ClaimFailed, &error);
                self.binding.failed(&error, "subscribe");
                Err(error)
            }
        }
    }
}

/// Decodes a message, hands it to the service and turns its word into Headwater's.
async fn call<T: prost::Name + Default>(
    seen: &Seen,
    handler: &dyn Handler<T>,
    message: &Message,
    context: &Context,
) -> headwater::HandlerResult {
    let _active = seen.begin();
    let value = match decode::<T>(message) {
        Ok(value) => value,
        Err(error) => {
            seen.undecodable(&error, message.offset);
            return Err(headwater::Bury(format!("{}: {error}", error.code())).into());
        }
    };
    let delivery = Delivery { offset: message.offset.0, attempt: context.attempt() };
    settled(seen, handler.handle(value, delivery).await)
}

/// Headwater's word for what a service returned on a message.
pub(super) fn settled(seen: &Seen, verdict: Verdict) -> headwater::HandlerResult {
    match verdict {
        Verdict::Done => {
            seen.done(1);
            Ok(())
        }
        Verdict::Retry(reason) => Err(reason.into()),
        Verdict::GiveBack => Err(headwater::Release.into()),
        Verdict::Bury(reason) => Err(headwater::Bury(reason).into()),
    }
}

/// The value of a message. Its type is compared first: bytes of another type may parse by accident.
pub(crate) fn decode<T: prost::Name + Default>(message: &Message) -> Result<T> {
    if !type_is::<T>(message) {
        let (found, expected) = (message.message_type.as_deref().unwrap_or("none"), T::full_name());
        let text = format!("message at offset {} has type {found}, expected {expected}", message.offset);
        return Err(Error::permanent(ErrorCode::UnknownType, text));
    }
    T::decode(message.payload.clone()).map_err(|error| {
        let text = format!("message at offset {} is no {}: {error}", message.offset, T::full_name());
        Error::permanent(ErrorCode::DecodeFailed, text)
    })
}

/// How long the end of a binding waits for calls that its service has not ended itself.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(5);
