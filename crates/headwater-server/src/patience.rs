//! A connection that does not wait for ever for a client to read: a write that makes no progress in time fails, and the connection ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A stream with a limit on how long a write may wait.
pub(crate) struct Patient<S> {
    stream: S,
    wait_max: Duration,
    /// Until when the write under way may wait; one timer for all of them, boxed so that the stream can be moved.
    until: Pin<Box<Sleep>>,
    is_waiting: bool,
}

impl<S> Patient<S> {
    pub(crate) fn new(stream: S, wait_max: Duration) -> Self {
        Patient { stream, wait_max, until: Box::pin(tokio::time::sleep(wait_max)), is_waiting: false }
    }

    /// The result of a write, or an error if it waits for too long.
    fn patient<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_waiting = false;
            return written;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            self.until.as_mut().reset(Instant::now() + self.wait_max);
        }
        ready!(self.until.as_mut().poll(context));
        crate::metrics::dropped("slow");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.patient(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.patient(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.patient(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.patient(ended, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_given_up_and_a_slow_one_is_not() {
        let (near, mut far) = tokio::io::duplex(10);
        let mut patient = Patient::new(near, SECOND);
        let reading = tokio::spawn(async move {
            let mut read = 0;
            while read < 40 {
                tokio::time::sleep(SECOND * 9 / 10).await;
                read += far.read(&mut [0; 10]).await.expect("read");
            }
            far
        });
        patient.write_all(&[7; 40]).await.expect("each part is taken in time");
        let _far = reading.await.expect("read");
        let started = Instant::now();
        let error = patient.write_all(&[7; 40]).await.expect_err("not read");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() >= SECOND && started.elapsed() < SECOND * 2);
    }
}
