//! Cgroups that lose their turn, on the real kernel: two servers next to two busy loops, of which one often gets nothing for seconds
//! (docs/tenants.md, "Groups that lose their turn"), counted by a client that is not ours.

mod scene;

use std::process::{Command, Stdio};

use evenkeel_actuate::be_urgent;
use scene::{Agent, Group, Process, assert_all_back, begin};

/// Seconds that the client counts, that the loop has to begin, and that it works.
const SECONDS: [usize; 3] = [24, 5, 20];

#[test]
fn no_server_is_silent_while_the_loop_watches_and_quotas_are_taken_back() {
    let (_turn, dir) = begin();
    let client = dir.path().join("lost_turn");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/tenants/lost_turn.c");
    let built = Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .args([client.as_os_str(), source.as_ref()])
        .status();
    assert!(built.unwrap().success());
    let groups = [Group::new("turn-a"), Group::new("turn-b")];
    let before: Vec<_> = groups.iter().map(Group::files).collect();
    // Else this test might lose its own turn before it starts anything; what it starts is not urgent.
    be_urgent().unwrap();
    // Each in a session of its own, which leads a process group, too.
    let busy = || Process(Command::new("setsid").args(["sh", "-c", "while :; do :; done"]).spawn().unwrap());
    let _busy = [busy(), busy()];
    let mut counting = Command::new(&client);
    counting.args(["8".to_owned(), SECONDS[0].to_string()]);
    counting.args(groups.iter().map(Group::dir)).stdout(Stdio::piped());
    let counting = counting.spawn().unwrap();
    let scopes = groups.each_ref().map(Group::scope);
    let watched = format!("{}s", SECONDS[2]);
    let args = [
        "run", "--scope", &scopes[0], "--scope", &scopes[1], "--lever", "turns", "--for", &watched, "-o",
        "json",
    ];
    let output = Agent::run(dir.path(), &args).end();
    assert_all_back(&output.json());
    let counted = String::from_utf8(counting.wait_with_output().unwrap().stdout).unwrap();
    let seconds = counted.lines().filter(|line| !line.contains("without")).take(SECONDS[2]).skip(SECONDS[1]);
    let silent = seconds.flat_map(str::split_whitespace).filter(|answers| *answers == "0").count();
    assert!(silent == 0, "{silent} silent seconds:\n{counted}{}", output.stderr);
    let after: Vec<_> = groups.iter().map(Group::files).collect();
    assert_eq!(after, before);
}
