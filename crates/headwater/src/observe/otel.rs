//! Contexts of OpenTelemetry's spans, for programs with a layer of tracing-opentelemetry (feature `otel`).
//!
//! Only ids, flags and state are converted: headers are read and written by [`super::trace`], by one set of rules.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, TraceContextExt, TraceFlags};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::trace::TraceContext;

/// The context of a span; `None` if no layer of OpenTelemetry records it.
pub(super) fn context_of(span: &Span) -> Option<TraceContext> {
    let context = span.context();
    let span = context.span();
    let ids = span.span_context();
    let (trace_id, span_id) = (ids.trace_id().to_bytes(), ids.span_id().to_bytes());
    ids.is_valid().then(|| {
        let (trace_id, span_id) = (u128::from_be_bytes(trace_id), u64::from_be_bytes(span_id));
        TraceContext::new(trace_id, span_id, ids.trace_flags().to_u8())
            .with_state(&ids.trace_state().header())
    })
}

/// Makes a span the child of a message's context, and returns the span's own; `None` if no layer of OpenTelemetry
/// records it. The span must not have been entered: its parent is fixed by then.
pub(super) fn adopt(span: &Span, parent: &TraceContext) -> Option<TraceContext> {
    span.set_parent(Context::new().with_remote_span_context(remote(parent))).ok()?;
    context_of(span)
}

/// Links a span to a message's context: a batch may have messages of many traces, and has no parent.
pub(super) fn link(span: &Span, context: &TraceContext) {
    span.add_link(remote(context));
}

fn remote(context: &TraceContext) -> SpanContext {
    let (trace_id, span_id, flags) = context.ids();
    // A state that OpenTelemetry cannot read is dropped, as the recommendation asks.
    let state = context.state().and_then(|state| state.parse().ok()).unwrap_or_default();
    SpanContext::new(trace_id.into(), span_id.into(), TraceFlags::new(flags), true, state)
}
