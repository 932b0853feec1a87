//! A sink whose calls are seen by an observer.

use async_trait::async_trait;
use headwater_relay::target::sink_for;
use headwater_relay::{Delivery, Record, Sink, SinkError};

/// Sees the calls of a sink.
pub(super) trait Observer: Send + Sync {
    /// These records are about to be sent.
    fn begins(&self, _records: &[Record]) {}

    /// The call has ended with these results. A call that fails as a whole, or is dropped, does not.
    fn ends(&self, records: &[Record], deliveries: &[Delivery]);
}

/// A sink with its observer.
pub(super) struct Observed<O> {
    sink: Box<dyn Sink>,
    pub(super) observer: O,
}

impl<O: Observer> Observed<O> {
    /// The sink of a target.
    pub(super) fn new(target: &str, observer: O) -> headwater::Result<Self> {
        Ok(Observed { sink: sink_for(target)?, observer })
    }
}

#[async_trait]
impl<O: Observer> Sink for Observed<O> {
    fn kind(&self) -> &'static str {
        self.sink.kind()
    }

    fn keeps_order(&self) -> bool {
        self.sink.keeps_order()
    }

    fn calls_at_once(&self) -> usize {
        self.sink.calls_at_once()
    }

    async fn deliver(&self, records: &[Record]) -> Result<Vec<Delivery>, SinkError> {
        self.observer.begins(records);
        let deliveries = self.sink.deliver(records).await?;
        self.observer.ends(records, &deliveries);
        Ok(deliveries)
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.sink.check().await
    }

    async fn close(&self) {
        self.sink.close().await;
    }
}
