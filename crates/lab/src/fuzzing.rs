//! What tenants, tools and runtimes tell the laboratory, for `crates/fuzz`: no interface. Each function panics where the result
//! makes no sense.

use std::collections::HashMap;

use crate::net::measure::link_packets;
use crate::runner::answers::Answers;
use crate::runner::command;
use crate::vm::image::paths_of_ldd;

/// The file of a tenant's answers.
pub fn answers(text: &str) {
    let answers = Answers::parse(text);
    let _ = answers.account();
}

/// What a command printed: `sysbench`, `openssl`.
pub fn output(text: &str) {
    let (_, rate) = command::events_of(text);
    assert!(rate.is_none_or(|rate| rate.is_finite() && rate >= 0.0), "{rate:?} events a second");
}

/// A link's line in `/proc/net/dev`, the output of `ldd`.
pub fn small(text: &str) {
    let _ = link_packets(text, "eth0");
    let _ = paths_of_ldd(text);
}

/// What a CRI runtime says of itself and of a container.
pub fn cri(text: &str) {
    let _ = crate::cri::setup_of(serde_json::from_str(text).unwrap_or_default());
    let _ = crate::cri::pid_of(&HashMap::from([("info".to_owned(), text.to_owned())]));
}
