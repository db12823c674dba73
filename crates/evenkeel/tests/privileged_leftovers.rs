//! What commands make for themselves, cgroups and directories, after they were killed. A program of its own: every
//! `evenkeel restore` at the same time would clear up, too. Needs root.

mod scene;

use evenkeel_linux::testing::{awaited, made_by};
use scene::{Process, run, until};

#[test]
fn what_a_killed_command_had_made_for_itself_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["prove", "--mixes", "1"]);
    let mut prove = Process::spawn(command);
    let pid = prove.pid();
    let is_there = || !made_by("lab", pid).is_empty();
    until("it makes something", is_there);
    prove.0.kill().unwrap();
    prove.0.wait().unwrap();
    assert!(is_there(), "nothing was left");
    let mut told = String::new();
    // Its loads end with it, which takes the kernel a moment.
    awaited(60, || {
        told.push_str(&run(dir.path(), &["restore"]).with(0).stdout);
        if is_there() { Err(told.clone()) } else { Ok(()) }
    });
    assert!(told.contains("removed that a killed"), "{told}");
}
