//! What does an address answer? A small HTTP client ([`http`]), and metrics in Prometheus' text format ([`prometheus`]).

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod http;
pub mod prometheus;
