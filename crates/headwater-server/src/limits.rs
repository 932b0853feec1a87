//! Limits on requests and connections. Each has a default that suits a server on one machine.

use std::time::Duration;

/// What a server accepts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Bytes of a request's headers.
    pub header_bytes_max: usize,
    /// Messages of a batch, and settlements of a request.
    pub batch_max: usize,
    /// Connections at once; those beyond it wait.
    pub connections_max: usize,
    /// The longest wait of a claim.
    pub wait_max: Duration,
    /// How long a client may take to send its headers, and to send each part of its body; a connection that is idle for so long is closed.
    pub read_timeout: Duration,
    /// How long a client may take to accept a part of an answer.
    pub write_timeout: Duration,
    /// How long requests may continue after the server has begun to stop.
    pub shutdown_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes_max: 8 * 1024 * 1024,
            header_bytes_max: 32 * 1024,
            batch_max: 1_000,
            connections_max: 4_096,
            wait_max: Duration::from_secs(60),
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(20),
        }
    }
}
