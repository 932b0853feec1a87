//! W3C trace context: carried in a message's headers from its publisher to the handler, and from there to what the handler
//! publishes.
//!
//! The rules are those of the recommendation: a `traceparent` that breaks them is ignored, together with its `tracestate`.
//!
//! With the feature `otel`, and a layer of tracing-opentelemetry in the subscriber, spans take part: a message published in a
//! span carries the span's context, unless it has one or [`within`] set one, and the span of a handler is a child of the
//! message's context. The span of a batch has links to its messages' contexts.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::str::FromStr;

use crate::limits::HEADERS_MAX;
use crate::message::{Message, NewMessage};
use crate::name::{GroupName, TopicName};

/// The header with the trace and the span.
const TRACEPARENT: &str = "traceparent";
/// The header with what tracing systems add for themselves.
const TRACESTATE: &str = "tracestate";
/// Length of a `traceparent` of version 00, and of the known part of later ones.
const TRACEPARENT_BYTES: usize = 55;
/// Flags that are defined: sampled, and random trace id (level 2). Others must be sent as zero.
const FLAGS_KNOWN: u8 = 0b11;
const FLAG_SAMPLED: u8 = 0b1;

tokio::task_local! {
    static CURRENT: Current;
}

/// Which context a task has.
#[derive(Clone, Debug)]
pub(crate) enum Current {
    /// This one, whatever the current span is.
    Set(TraceContext),
    /// That of the current span, which OpenTelemetry records.
    #[cfg(feature = "otel")]
    OfSpan,
}

/// Where in a distributed trace something happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Never zero.
    trace_id: u128,
    /// Never zero.
    span_id: u64,
    flags: u8,
    state: Option<String>,
}

/// The context of this task, as set by [`within`] or by the handler that runs. With the feature `otel` the context of the
/// current span, if [`within`] set none.
pub fn current() -> Option<TraceContext> {
    match CURRENT.try_with(Clone::clone) {
        Ok(Current::Set(context)) => Some(context),
        #[cfg(feature = "otel")]
        _ => super::otel::context_of(&tracing::Span::current()),
        #[cfg(not(feature = "otel"))]
        Err(_) => None,
    }
}

/// Runs a future in a context: what it publishes carries it. Tasks it spawns do not inherit it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use headwater::trace::{self, TraceContext};
///
/// // As it came with a request.
/// let context: TraceContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?;
/// trace::within(context, async {
///     assert_eq!(trace::current().unwrap().trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
/// })
/// .await;
/// # Ok(()) }
/// ```
pub async fn within<F: Future>(context: TraceContext, future: F) -> F::Output {
    within_current(Current::Set(context), future).await
}

/// Runs a handler that is a future in the context of its message.
pub(crate) async fn within_current<F: Future>(current: Current, future: F) -> F::Output {
    CURRENT.scope(current, future).await
}

/// Runs a handler that is not a future in the context of its message.
#[cfg(feature = "sqlite")]
pub(crate) fn within_now<T>(current: Current, run: impl FnOnce() -> T) -> T {
    CURRENT.sync_scope(current, run)
}

/// Gives a message the current context, if there is one and the message has none of its own.
pub(crate) fn inject(message: &mut NewMessage) {
    // No context is the common case, and costs one read of a thread-local.
    if let Some(context) = current() {
        context.inject(message);
    }
}

/// A batch whose messages have the current context; copied only if there is one.
pub(crate) fn injected(messages: &[NewMessage]) -> Cow<'_, [NewMessage]> {
    let Some(context) = current() else { return Cow::Borrowed(messages) };
    let mut messages = messages.to_vec();
    messages.iter_mut().for_each(|message| context.inject(message));
    Cow::Owned(messages)
}

/// The context a message carries.
pub(crate) fn of(message: &Message) -> Option<TraceContext> {
    let context: TraceContext = message.headers.get(TRACEPARENT)?.parse().ok()?;
    Some(match message.headers.get(TRACESTATE) {
        Some(state) => context.with_state(state),
        None => context,
    })
}

/// The span of one handler's call, and the context to run it in, if its message carries one. At INFO, although it is per
/// message: it prints nothing by itself, and everything that is logged inside has the message's identity.
pub(crate) fn span(
    topic: &TopicName,
    group: &GroupName,
    message: &Message,
    attempt: u32,
) -> (tracing::Span, Option<Current>) {
    use tracing::field::{Empty, display};

    let span = tracing::info_span!(
        "handle",
        topic = topic.as_str(),
        group = group.as_str(),
        offset = message.offset.0,
        message_id = %message.message_id,
        attempt,
        trace_id = Empty,
        span_id = Empty,
    );
    let Some(parent) = of(message) else { return (span, None) };
    let (context, current) = child(&span, &parent);
    span.record("trace_id", display(format_args!("{:032x}", context.trace_id)));
    span.record("span_id", display(format_args!("{:016x}", context.span_id)));
    (span, Some(current))
}

/// The span's context below its message's. OpenTelemetry's, where it records the span: a handler's own spans are then
/// below it, and what they publish is below them.
fn child(span: &tracing::Span, parent: &TraceContext) -> (TraceContext, Current) {
    #[cfg(feature = "otel")]
    if let Some(context) = super::otel::adopt(span, parent) {
        return (context, Current::OfSpan);
    }
    let _ = span;
    let context = parent.child();
    (context.clone(), Current::Set(context))
}

/// The span of one call of a handler with several messages.
pub(crate) fn batch_span(
    topic: &TopicName,
    group: &GroupName,
    messages: &[Message],
    attempt: u32,
) -> tracing::Span {
    let span = tracing::info_span!(
        "handle",
        topic = topic.as_str(),
        group = group.as_str(),
        offset = messages.first().map(|message| message.offset.0),
        messages = messages.len(),
        attempt,
    );
    #[cfg(feature = "otel")]
    messages.iter().filter_map(of).for_each(|context| super::otel::link(&span, &context));
    span
}

impl TraceContext {
    #[cfg(feature = "otel")]
    pub(super) fn new(trace_id: u128, span_id: u64, flags: u8) -> Self {
        TraceContext { trace_id, span_id, flags: flags & FLAGS_KNOWN, state: None }
    }

    #[cfg(feature = "otel")]
    pub(super) fn ids(&self) -> (u128, u64, u8) {
        (self.trace_id, self.span_id, self.flags)
    }

    /// A child of it: the same trace, a span of its own.
    #[must_use]
    pub fn child(&self) -> Self {
        TraceContext { span_id: rand::random_range(1..=u64::MAX), ..self.clone() }
    }

    /// With a `tracestate` to pass on, exactly as it came.
    #[must_use]
    pub fn with_state(mut self, state: &str) -> Self {
        self.state = (!state.trim().is_empty()).then(|| state.to_owned());
        self
    }

    /// The trace's id: 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// The span's id: 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span_id)
    }

    /// Whether the publisher may have recorded the trace.
    pub fn is_sampled(&self) -> bool {
        self.flags & FLAG_SAMPLED != 0
    }

    /// The `tracestate`, if one came.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Gives it to a message that has none of its own.
    pub(crate) fn inject(&self, message: &mut NewMessage) {
        let headers = &mut message.headers;
        // A message full of headers is published without a context rather than refused.
        if headers.contains_key(TRACEPARENT) || headers.len() >= HEADERS_MAX {
            return;
        }
        headers.insert(TRACEPARENT.to_owned(), self.to_string());
        match &self.state {
            Some(state) if headers.len() < HEADERS_MAX => {
                headers.insert(TRACESTATE.to_owned(), state.clone());
            }
            // A state without its traceparent belongs to another trace.
            _ => {
                headers.remove(TRACESTATE);
            }
        }
    }
}

/// As a `traceparent` of version 00.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// From a `traceparent`.
impl FromStr for TraceContext {
    type Err = crate::Error;

    fn from_str(traceparent: &str) -> Result<Self, Self::Err> {
        parse(traceparent).map_err(|rule| {
            crate::Error::invalid(
                TRACEPARENT,
                format!("{rule}; expected version-trace_id-parent_id-flags, as 00-<32 digits>-<16 digits>-<2 digits>"),
            )
        })
    }
}

fn parse(traceparent: &str) -> Result<TraceContext, &'static str> {
    let bytes = traceparent.as_bytes();
    if bytes.len() < TRACEPARENT_BYTES {
        return Err("shorter than 55 bytes");
    }
    if [2, 35, 52].iter().any(|at| bytes[*at] != b'-') {
        return Err("its parts are not parted by - in the right places");
    }
    let version = hexadecimal(&bytes[..2])?;
    match version {
        0xff => return Err("version ff is forbidden"),
        0 if bytes.len() > TRACEPARENT_BYTES => return Err("longer than 55 bytes, as version 00 may not be"),
        // Later versions may add parts, and only parts.
        _ if bytes.len() > TRACEPARENT_BYTES && bytes[TRACEPARENT_BYTES] != b'-' => {
            return Err("flags longer than 2 digits");
        }
        _ => {}
    }
    let trace_id = hexadecimal(&bytes[3..35])?;
    let span_id = hexadecimal(&bytes[36..52])?;
    let flags = hexadecimal(&bytes[53..55])?;
    if trace_id == 0 || span_id == 0 {
        return Err("an id of zeros means none");
    }
    Ok(TraceContext {
        trace_id,
        span_id: u64::try_from(span_id).expect("16 digits fit 64 bits"),
        flags: u8::try_from(flags).expect("2 digits fit 8 bits") & FLAGS_KNOWN,
        state: None,
    })
}

/// Lower case only: the recommendation forbids capitals, and `from_str_radix` would also take a sign.
fn hexadecimal(digits: &[u8]) -> Result<u128, &'static str> {
    digits.iter().try_fold(0, |value, digit| match digit {
        b'0'..=b'9' => Ok(value << 4 | u128::from(digit - b'0')),
        b'a'..=b'f' => Ok(value << 4 | u128::from(digit - b'a' + 10)),
        _ => Err("only the digits 0-9 and a-f are allowed"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::tests::stored;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn context() -> TraceContext {
        PARENT.parse().unwrap()
    }

    #[test]
    fn traceparent_comes_back_as_it_was() {
        let context = context();
        assert_eq!(context.to_string(), PARENT);
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span_id(), "00f067aa0ba902b7");
        assert!(context.is_sampled());
    }

    #[test]
    fn traceparents_that_break_a_rule_are_refused() {
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0é",
            "äääääääääääääääääääääääääääääääääääääääääääääääääääääää",
            &format!("{later}more"),
            &format!(" {PARENT}"),
        ] {
            let error = bad.parse::<TraceContext>().expect_err(bad);
            assert!(error.to_string().starts_with("invalid traceparent: "), "{error}");
        }
    }

    #[test]
    fn later_versions_are_read_by_their_known_part() {
        for later in [
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-else",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
        ] {
            assert_eq!(later.parse::<TraceContext>().unwrap().to_string(), PARENT);
        }
    }

    #[test]
    fn unknown_flags_are_not_passed_on() {
        let context: TraceContext = PARENT.replace("-01", "-fe").parse().unwrap();
        assert!(context.to_string().ends_with("-02") && !context.is_sampled());
    }

    #[tokio::test]
    async fn message_published_in_a_context_carries_it() {
        let mut outside = NewMessage::new("a");
        inject(&mut outside);
        assert_eq!(outside, NewMessage::new("a"), "nothing is added without a context");
        assert_eq!(current(), None);

        let context = context().with_state("vendor=1,other=2");
        within(context.clone(), async {
            let mut message = NewMessage::new("a").header("tracestate", "old=1");
            inject(&mut message);
            assert_eq!(of(&stored(message)), Some(context));

            let own = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-00";
            let mut message = NewMessage::new("a").header("traceparent", own);
            inject(&mut message);
            assert_eq!(message.headers["traceparent"], own);
            assert!(!message.headers.contains_key("tracestate"));
        })
        .await;
        assert_eq!(current(), None);
    }

    #[tokio::test]
    async fn message_full_of_headers_goes_without() {
        let full =
            (0..HEADERS_MAX).fold(NewMessage::new("a"), |message, n| message.header(format!("h{n}"), ""));
        let mut message = full.clone();
        within(context().with_state("a=b"), async { inject(&mut message) }).await;
        assert_eq!(message, full);
        message.headers.pop_first();
        within(context().with_state("a=b"), async { inject(&mut message) }).await;
        assert_eq!(message.headers["traceparent"], PARENT);
        message.validate().unwrap();
    }

    #[test]
    fn child_keeps_the_trace_and_takes_a_new_span() {
        let parent = context().with_state("a=b");
        let child = parent.child();
        assert_eq!((child.trace_id(), child.state()), (parent.trace_id(), Some("a=b")));
        assert_ne!(child.span_id(), parent.span_id());
        assert_eq!(child.to_string().parse::<TraceContext>().unwrap().span_id(), child.span_id());
    }

    #[test]
    fn message_with_a_bad_traceparent_has_no_context() {
        let message =
            stored(NewMessage::new("a").header("traceparent", "nonsense").header("tracestate", "a=b"));
        assert_eq!(of(&message), None);
        assert_eq!(of(&stored(NewMessage::new("a"))), None);
    }

    #[test]
    fn span_carries_the_identity_of_the_message() {
        use tracing_subscriber::fmt::MakeWriter;

        #[derive(Clone, Default)]
        struct Lines(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl std::io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        impl MakeWriter<'_> for Lines {
            type Writer = Lines;

            fn make_writer(&self) -> Lines {
                self.clone()
            }
        }

        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(lines.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let (topic, group) = (TopicName::new("orders").unwrap(), GroupName::new("email").unwrap());
            let traced = stored(NewMessage::new("a").header("traceparent", PARENT));
            span(&topic, &group, &traced, 2).0.in_scope(|| tracing::info!("inside"));
            let plain = stored(NewMessage::new("a"));
            span(&topic, &group, &plain, 1).0.in_scope(|| tracing::info!("without"));
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        for part in [
            "handle{",
            "topic=\"orders\"",
            "group=\"email\"",
            "offset=42",
            "attempt=2",
            "trace_id=4bf92f3577b34da6a3ce929d0e0e4736",
            "span_id=",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("span_id=00f067aa0ba902b7"), "a span of its own: {text}");
        assert_eq!(text.matches("trace_id").count(), 1, "{text}");
    }
}
