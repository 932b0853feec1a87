//! The end of a service's bindings: newest first, and a failing one stops no other.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;

use super::BindingHandle;
use crate::error::{Error, ErrorCode, Result};
use crate::resource::Closer;

type Close = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = Result<()>> + Send>> + Send + Sync>;

/// What has to be closed, in the order in which it was opened.
#[derive(Default)]
pub(crate) struct Closing(Vec<(String, Option<Arc<BindingHandle>>, Close)>);

impl Closing {
    /// Adds what was opened last.
    pub(crate) fn add<F>(
        &mut self,
        name: impl Into<String>,
        binding: Option<&Arc<BindingHandle>>,
        close: impl FnOnce() -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        self.0.push((name.into(), binding.cloned(), Box::new(move || Box::pin(close()))));
    }

    /// Adds what was opened first, so that it is closed last.
    pub(crate) fn add_first<F>(
        &mut self,
        name: impl Into<String>,
        close: impl FnOnce() -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        self.0.insert(0, (name.into(), None, Box::new(move || Box::pin(close()))));
    }
}

#[async_trait]
impl Closer for Closing {
    async fn close(mut self: Box<Self>) {
        while let Some((name, binding, close)) = self.0.pop() {
            if let Err(error) = close().await {
                let error = Error::permanent(ErrorCode::CloseFailed, error);
                tracing::warn!(binding = name, %error, "close failed");
                if let Some(binding) = binding {
                    binding.failed(&error, "close");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn one_failing_close_stops_no_other() {
        let closed: Arc<Mutex<Vec<u32>>> = Arc::default();
        let mut closing = Closing::default();
        for n in 1..=3 {
            let closed = Arc::clone(&closed);
            closing.add(format!("binding {n}"), None, move || async move {
                closed.lock().expect("not poisoned").push(n);
                if n == 2 { Err(Error::transient(ErrorCode::WriteFailed, "disk full")) } else { Ok(()) }
            });
        }
        Box::new(closing).close().await;
        assert_eq!(*closed.lock().expect("not poisoned"), [3, 2, 1], "newest first, and all of them");
    }
}
