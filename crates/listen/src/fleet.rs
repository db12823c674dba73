//! Many agents' pages, read: what each host's metrics say, asked of the agents or of a Prometheus.

pub mod fetch;
pub mod host;
