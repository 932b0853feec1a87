//! What tests of a program use: a clock that is moved by hand, and a consumer that takes one step at a time. The store is
//! [`Headwater::in_memory`](crate::Headwater::in_memory), or `sqlite::memory:` with [`OpenOptions`](crate::OpenOptions).

pub use crate::clock::ManualClock;
pub use crate::consumer::step::Stepper;
