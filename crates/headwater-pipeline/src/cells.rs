//! Cells of a tick as packed columns.
