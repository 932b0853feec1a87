//! What a service has done: counters, rates, latencies and its last errors, for programs, the control API and as metrics.

/// Figures and errors of a service. Recording is O(1).
#[derive(Debug, Default)]
pub struct Health {}
