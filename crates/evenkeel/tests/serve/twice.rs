//! Two `serve` on one state directory.

use std::process::Command;

use evenkeel_linux::testing::until;
use evenkeel_store::Store;

use super::agent::{BINARY, Serve};

/// By session, the time of its first and of its last sample.
fn sessions(of: &Serve) -> Vec<(u64, u64)> {
    let path = of.state.path().join(evenkeel_store::FILE_NAME);
    let store = Store::open_read_only(&path).unwrap().unwrap();
    let mut all: Vec<(i64, u64, u64)> = Vec::new();
    for sample in store.samples(0, u64::MAX).unwrap().map(Result::unwrap) {
        let at = sample.sample.wall_ns;
        match all.last_mut().filter(|last| last.0 == sample.session) {
            Some(last) => last.2 = at,
            None => all.push((sample.session, at, at)),
        }
    }
    all.into_iter().map(|(_, first, last)| (first, last)).collect()
}

pub fn the_second_records_when_the_first_has_ended() {
    let mut first = Serve::start(&["--blame", "off"]);
    first.metrics_with("evenkeel_observed_timestamp_seconds ");
    let mut again = Command::new("sh");
    let elsewhere = "shift 2; exec \"$0\" --state-dir \"$FIRST\" \"$@\"";
    again.args(["-c", elsewhere, BINARY]).env("FIRST", first.state.path());
    let second = Serve::spawned(again, &["serve", "--listen", "127.0.0.1:0", "--blame", "off"], &[]);
    let who = format!("another `serve` (pid {}) writes the history", first.process.0.id());
    until("it says who writes", || second.said().contains(&who));
    first.end();
    until("it goes on", || second.said().contains("the history is written here again"));
    until("it has written something", || sessions(&first).len() == 2);
    let both = sessions(&first);
    assert!(both[0].1 <= both[1].0, "they overlap: {both:?}");
}
