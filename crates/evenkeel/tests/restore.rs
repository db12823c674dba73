//! `evenkeel restore` as a user meets it: nothing to do, a killed run, bad luck.

mod program;

use std::path::Path;
use std::process::Command;

use evenkeel_actuate::{Actuator, Kernel, Linux, Options};
use evenkeel_base::{Change, Nice, Plan, SchedAttr, Setting, Target};
use evenkeel_linux::testing::{TestChild, until};
use program::{Ended, end};

struct Sleeper(TestChild);

impl Sleeper {
    fn new() -> Self {
        Self(TestChild(Command::new("sleep").arg("300").spawn().unwrap()))
    }

    fn target(&self) -> Target {
        Target::Task(Linux::new().unwrap().identity(self.0.id()).unwrap().id)
    }

    fn nice(&self) -> i32 {
        nice_of(self.0.id())
    }
}

fn nice_of(pid: u32) -> i32 {
    let pid = rustix::process::Pid::from_raw(pid as i32);
    rustix::process::getpriority_process(pid).unwrap()
}

/// What a child begins with: tests may run under `nice`.
fn inherited_nice() -> i32 {
    nice_of(std::process::id())
}

#[track_caller]
fn restore(dir: &Path, args: &[&str]) -> Ended {
    end(program::evenkeel(["restore", "--state-dir"]).arg(dir).args(args))
}

fn tuned(dir: &Path, sleepers: &[&Sleeper]) -> Actuator<Linux> {
    let (mut actuator, _) = Actuator::open(Linux::new().unwrap(), dir, Options::default()).unwrap();
    let to = Setting::Sched(SchedAttr { nice: Nice::new(7), ..SchedAttr::DEFAULT });
    let changes = sleepers.iter().map(|s| Change { target: s.target(), to: to.clone(), why: "test".into() });
    let plan = Plan { changes: changes.collect(), ..Plan::default() };
    assert_eq!(actuator.set(&plan, &|_| true).applied(), sleepers.len());
    actuator
}

#[test]
fn nothing_to_do_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    for state in [dir.path().to_owned(), dir.path().join("missing")] {
        let ended = restore(&state, &[]).with(0);
        assert!(ended.stdout.contains("nothing to do") && ended.stderr.is_empty(), "{ended}");
    }
    assert!(!dir.path().join("missing").exists());
}

#[test]
fn what_a_run_left_is_put_back_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two, lost) = (Sleeper::new(), Sleeper::new(), Sleeper::new());
    drop(tuned(dir.path(), &[&one, &two, &lost]));
    drop(lost);
    assert_eq!(one.nice(), 7);
    // somebody else has other plans for the second
    let pid = rustix::process::Pid::from_raw(two.0.id() as i32);
    rustix::process::setpriority_process(pid, 11).unwrap();
    let json = restore(dir.path(), &["-o", "json"]).with(1).document();
    assert_eq!(json["schema"], "evenkeel.restore/v1");
    let mut outcomes: Vec<_> =
        json["items"].as_array().unwrap().iter().map(|item| item["outcome"].as_str().unwrap()).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["conflict", "gone", "put back"]);
    assert_eq!((one.nice(), two.nice()), (inherited_nice(), 11));
    restore(dir.path(), &["-o", "csv"]).with(0);
}

/// What the unit does that restores what a killed agent left: what an administrator set, and an experiment at work, are not the agent's.
#[test]
fn what_a_run_left_is_restored_alone_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (of_run, of_net, of_lab) = (Sleeper::new(), Sleeper::new(), Sleeper::new());
    drop(tuned(dir.path(), &[&of_run]));
    drop(tuned(&dir.path().join("host"), &[&of_net]));
    let at_work = tuned(&dir.path().join("lab"), &[&of_lab]);
    restore(dir.path(), &["--run-only"]).says(0, "1 put back");
    assert_eq!((of_run.nice(), of_net.nice(), of_lab.nice()), (inherited_nice(), 7, 7));
    drop(at_work);
    restore(dir.path(), &[]).with(0);
    assert_eq!((of_net.nice(), of_lab.nice()), (inherited_nice(), inherited_nice()));
}

#[test]
fn a_run_at_work_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let sleeper = Sleeper::new();
    let actuator = tuned(dir.path(), &[&sleeper]);
    restore(dir.path(), &[]).says(1, &format!("pid {}", std::process::id()));
    assert_eq!(sleeper.nice(), 7);
    assert!(actuator.close().is_clean());
}

#[test]
fn without_privilege_it_says_so_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let sleeper = Sleeper::new();
    drop(tuned(dir.path(), &[&sleeper]));
    let as_nobody = |dir: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_evenkeel")]);
        end(command.args(["restore", "--state-dir"]).arg(dir)).with(3)
    };
    let ended = as_nobody(dir.path());
    assert!(ended.stderr.contains("root"), "{ended}");
    // and where nobody may read the journal but not change a task of root's
    let allow = |mode: u32| {
        for name in ["", "journal", "lock"] {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(dir.path().join(name), mode).unwrap();
        }
    };
    allow(0o777);
    as_nobody(dir.path());
    assert_eq!(sleeper.nice(), 7);
    // Whoever may write there may have written the journal: root does not act on it either.
    restore(dir.path(), &[]).says(3, "by others");
    assert_eq!(sleeper.nice(), 7);
    allow(0o700);
    restore(dir.path(), &[]).with(0);
    assert_eq!(sleeper.nice(), inherited_nice());
}

/// Runs a script in a mount namespace of its own, with a small tmpfs on `$1` and the binary as `$2`.
fn in_namespace(dir: &Path, script: &str) -> Ended {
    let mut command = Command::new("unshare");
    end(command.args(["-m", "sh", "-ec", script, "sh"]).arg(dir).arg(env!("CARGO_BIN_EXE_evenkeel")))
}

#[test]
fn a_full_or_read_only_disk_does_not_keep_it_from_putting_back() {
    let dir = tempfile::tempdir().unwrap();
    for trouble in ["dd if=/dev/zero of=$1/fill bs=4k 2>/dev/null || true", "mount -o remount,ro $1"] {
        let sleeper = Sleeper::new();
        let journal = tempfile::tempdir().unwrap();
        drop(tuned(journal.path(), &[&sleeper]));
        let script = format!(
            "mount -t tmpfs -o size=64k,mode=700 none $1; cp {0}/journal {0}/lock $1/; {trouble}; \
             s=0; $2 --state-dir $1 restore || s=$?; exit $s",
            journal.path().display()
        );
        in_namespace(dir.path(), &script).says(0, "1 put back");
        assert_eq!(sleeper.nice(), inherited_nice(), "{trouble}");
    }
}

#[test]
fn a_damaged_journal_is_explained_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Sleeper::new(), Sleeper::new());
    drop(tuned(dir.path(), &[&one, &two]));
    let journal = dir.path().join("journal");
    let mut bytes = std::fs::read(&journal).unwrap();
    let last = bytes.len() - 10;
    bytes[last] ^= 1; // the value written to the second
    std::fs::write(&journal, &bytes).unwrap();
    restore(dir.path(), &[]).says(1, "journal.corrupt-");
    assert_eq!(one.nice(), inherited_nice());
    let kept = std::fs::read_dir(dir.path()).unwrap().flatten();
    let kept: Vec<_> =
        kept.filter(|e| e.file_name().to_string_lossy().starts_with("journal.corrupt-")).collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(std::fs::read(kept[0].path()).unwrap(), bytes);
}

#[test]
fn stop_ends_who_holds_the_lock_and_nobody_the_file_names() {
    let dir = tempfile::tempdir().unwrap();
    let mut stranger = Sleeper::new();
    let lock = dir.path().join("lock");
    std::fs::write(&lock, format!("{{\"pid\":{},\"since\":0}}", stranger.0.id())).unwrap();
    let mut holder =
        TestChild(Command::new("flock").arg("--no-fork").arg(&lock).args(["sleep", "300"]).spawn().unwrap());
    until("the lock is held", || {
        !Command::new("flock").arg("-n").arg(&lock).arg("true").status().unwrap().success()
    });
    restore(dir.path(), &["--stop"]).with(0);
    assert!(stranger.0.try_wait().unwrap().is_none(), "the stranger was ended");
    assert!(holder.0.try_wait().unwrap().is_some(), "the holder was not ended");
}

#[test]
fn in_another_pid_namespace_it_refuses_and_keeps_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let sleeper = Sleeper::new();
    drop(tuned(dir.path(), &[&sleeper]));
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_evenkeel"), "--state-dir"]);
    end(command.arg(dir.path()).arg("restore")).says(3, "pid namespace");
    assert_eq!(sleeper.nice(), 7);
    restore(dir.path(), &[]).with(0);
    assert_eq!(sleeper.nice(), inherited_nice());
}

#[test]
fn zeros_and_garbage_at_the_end_are_damage() {
    for tail in [&[0u8; 512][..], b"garbage"] {
        let dir = tempfile::tempdir().unwrap();
        let sleeper = Sleeper::new();
        drop(tuned(dir.path(), &[&sleeper]));
        let journal = dir.path().join("journal");
        let bytes = [std::fs::read(&journal).unwrap(), tail.to_vec()].concat();
        std::fs::write(&journal, &bytes).unwrap();
        restore(dir.path(), &[]).says(1, "journal.corrupt-");
        assert_eq!(sleeper.nice(), inherited_nice());
    }
}
