//! `evenkeel run` in trouble: a state directory that is full, read-only or damaged, and a predecessor that was killed. Nothing
//! may be lost or stay changed. Needs root.

mod scene;

use std::path::Path;
use std::process::Command;

use evenkeel_actuate::{Actuator, Linux, Options};
use evenkeel_base::{Change, Nice, Plan, SchedAttr, Setting, Target};
use scene::{
    Agent, Ended, Process, VISIBLE, assert_all_back, begin_together, end, facts, hurried, run, snapshot,
    until, with_crowd,
};

/// Runs the loop in a mount namespace of its own, its state directory on a small tmpfs with some trouble.
fn run_in_trouble(dir: &Path, size: &str, trouble: &str, scope: &str, config: &str) -> Ended {
    let script = format!(
        "mount -t tmpfs -o size={size},mode=700 none $1; {trouble}; s=0; \
         $2 --state-dir $1 --config $4 run --scope $3 --for 8s -o json || s=$?; exit $s"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", &script, "sh"]).arg(dir);
    end(command.args([env!("CARGO_BIN_EXE_evenkeel"), scope, config]))
}

#[test]
fn a_read_only_full_or_filling_state_directory_loses_nothing() {
    let (_turn, dir, group, _loads) = with_crowd(begin_together(), "disk");
    let state = tempfile::tempdir().unwrap();
    let config = hurried(dir.path(), "4s");
    let before = snapshot(&[&group]);
    let fill = "dd if=/dev/zero of=$1/fill bs=4k 2>/dev/null || true";
    for (size, trouble) in [("64k", "mount -o remount,ro $1"), ("64k", fill)] {
        let words = run_in_trouble(state.path(), size, trouble, &group.scope(), &config).with(3).stderr;
        assert!(words.contains(state.path().to_str().unwrap()), "{trouble}: {words}");
        assert_eq!(snapshot(&[&group]), before, "{trouble}");
    }
    // Enough for the journal, not for the history: the loop works on, and says what it cannot keep.
    let output = run_in_trouble(state.path(), "48k", "true", &group.scope(), &config);
    assert!(output.stderr.contains("history"), "{output}");
    assert_all_back(&output.json());
    assert_eq!(snapshot(&[&group]), before);
}

#[test]
fn damaged_files_of_an_earlier_run_are_explained_and_do_not_stop_the_loop() {
    let (_turn, dir, group, loads) = with_crowd(begin_together(), "damage");
    let config = hurried(dir.path(), "4s");
    let before = snapshot(&[&group]);
    let scope = group.scope();
    let args = ["--config", &config, "run", "--scope", &scope, "--for", "5s", "-o", "json"];

    // What comes to light while it ends is told, too.
    let at_once = ["run", "--scope", "cgroup:/evenkeel-no-such", "--for", "100ms"];
    for args in [&at_once[..], &args] {
        let text = b"this is no database, but a line of text\n".repeat(300);
        std::fs::write(dir.path().join("history.db"), text).unwrap();
        let output = run(dir.path(), args);
        assert!(output.stderr.contains("history.corrupt-"), "{}", output.stderr);
        if args.contains(&"json") {
            assert_all_back(&output.json());
        }
    }
    assert_eq!(snapshot(&[&group]), before);

    // A predecessor changed two tasks and was killed; a byte of its journal is wrong.
    let (mut predecessor, _) = Actuator::open(Linux::new().unwrap(), dir.path(), Options::default()).unwrap();
    let to = Setting::Sched(SchedAttr { nice: Nice::new(7), ..SchedAttr::DEFAULT });
    let change = |load: &Process| {
        let id = facts(load.pid()).unwrap().0;
        Change { target: Target::Task(id), to: to.clone(), why: "test".into() }
    };
    let plan = Plan { changes: loads[..2].iter().map(change).collect(), ..Plan::default() };
    assert_eq!(predecessor.set(&plan, &|_| true).applied(), 2);
    drop(predecessor);
    let journal = dir.path().join("journal");
    let mut bytes = std::fs::read(&journal).unwrap();
    let last = bytes.len() - 10;
    bytes[last] ^= 1;
    std::fs::write(&journal, &bytes).unwrap();
    let words = run(dir.path(), &args).with(3).stderr;
    assert!(words.contains("journal"), "{words}");
    // Nothing was lost: the damaged file is kept, and the next run works.
    let kept = std::fs::read_dir(dir.path()).unwrap().flatten();
    let mut kept = kept.filter(|entry| entry.file_name().to_string_lossy().starts_with("journal.corrupt-"));
    assert_eq!(std::fs::read(kept.next().expect("kept aside").path()).unwrap(), bytes);
    assert_all_back(&run(dir.path(), &args).json());

    // Not even the beginning of a journal.
    std::fs::write(&journal, b"\x00\xff garbage\nand more of it\n").unwrap();
    let words = run(dir.path(), &args).with(3).stderr;
    assert!(words.contains("journal"), "{words}");
    assert_all_back(&run(dir.path(), &args).json());
}

#[test]
fn a_predecessor_that_was_killed_is_cleared_up_after_first() {
    let (_turn, dir, group, _loads) = with_crowd(begin_together(), "predecessor");
    let config = hurried(dir.path(), "4s");
    let before = snapshot(&[&group]);
    let scope = group.scope();
    let args = ["--config", &config, "run", "--scope", &scope, "--for", "5s", "-o", "json"];
    // It has all the time it needs until something is tried.
    let mut agent = Agent::run(dir.path(), &[&["run", "--scope", &scope], &VISIBLE[..]].concat());
    until("something is tried", || snapshot(&[&group]) != before);
    agent.kill();
    assert_ne!(snapshot(&[&group]), before, "the dead cannot put anything back");
    let status = run(dir.path(), &["status", "-o", "json"]).json();
    assert_eq!(status["state"], "killed");
    let output = run(dir.path(), &args);
    let said = ["predecessor", &agent.pid().to_string()];
    assert!(said.iter().all(|word| output.stderr.contains(word)), "{output}");
    assert_all_back(&output.json());
    assert_eq!(snapshot(&[&group]), before);
}
