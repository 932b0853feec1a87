//! Tests of what only this engine has; the promises of every engine are in `store::conformance`.
