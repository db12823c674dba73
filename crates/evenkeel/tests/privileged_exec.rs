//! `evenkeel exec` on the real kernel: what it promises about time, statuses, signals, streams and cleanliness.

mod program;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_base::{CpuQuota, Limit};
use evenkeel_linux::cgroupfs::processes;
use evenkeel_linux::group::Cgroup;
use evenkeel_linux::testing::{TestCgroup, TestChild, comm, looked_for, made_by, until};
use program::{Ended, end, evenkeel};

/// A state directory, and the end of everything started in it.
struct Bed {
    state: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        Self { state: tempfile::tempdir().unwrap() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = evenkeel(["exec"]);
        command.args(args).env("EVENKEEL_STATE_DIR", self.state.path());
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        end(&mut self.command(args))
    }

    /// The account of a run, as JSON.
    fn account(&self, args: &[&str]) -> serde_json::Value {
        account(&self.run(&[&["-o", "json"], args].concat()))
    }

    fn records(&self) -> usize {
        std::fs::read_dir(self.state.path().join("exec")).map_or(0, |dir| dir.count())
    }
}

/// The account in the last line of what a command said.
#[track_caller]
fn account(ended: &Ended) -> serde_json::Value {
    let last = ended.stderr.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {ended}"))
}

/// Processes of its group.
fn members(pid: u32) -> Vec<u32> {
    made_by("exec", pid).iter().map(|dir| processes(dir)).find(|pids| !pids.is_empty()).unwrap_or_default()
}

fn number(account: &serde_json::Value, name: &str) -> f64 {
    account[name].as_f64().unwrap_or_else(|| panic!("{name}: {account}"))
}

/// What runs a known amount of work.
const SPIN: &str = "end=$(($(date +%s%N) + 10000000000)); while [ $(date +%s%N) -lt $end ]; do i=0; \
                    while [ $i -lt 20000 ]; do i=$((i+1)); done; done";

#[test]
fn a_quota_is_kept_to_half_a_point() {
    // A large weight, so that other work on the host takes nothing from what the quota allows.
    let account = Bed::new().account(&["--cpu-limit", "25%", "--weight", "10000", "--", "sh", "-c", SPIN]);
    let (real, cpu) = (number(&account, "real_s"), number(&account, "user_s") + number(&account, "sys_s"));
    let pct = 100.0 * cpu / real;
    assert!((pct - 25.0).abs() <= 0.5, "{pct:.2} % of one CPU: {account}");
    let (waited, throttled) = (number(&account, "waited_s"), number(&account, "throttled_s"));
    // The kernel's waits include what it throttled, and it throttled most of what it did not give.
    assert!(waited / real > 0.6 && throttled / real > 0.5 && throttled <= waited * 1.05, "{account}");
    assert!(number(&account, "throttled_periods") / number(&account, "periods") > 0.8, "{account}");
    assert!(!Path::new(account["cgroup"].as_str().unwrap()).exists());
}

#[test]
fn what_a_quota_above_held_back_is_not_called_nothing() {
    let bed = Bed::new();
    let cgroup = TestCgroup::new("exec-above").unwrap();
    let inside = |seconds: &str| {
        let load = [env!("CARGO_BIN_EXE_evenkeel"), "load", "spin", "--seconds", seconds];
        let mut command = bed.command(&[&["-o", "json", "--"], &load[..]].concat());
        let procs = std::ffi::CString::new(cgroup.dir().join("cgroup.procs").to_str().unwrap()).unwrap();
        let enter = move || {
            // SAFETY: system calls on memory made before the fork.
            unsafe {
                let file = libc::open(procs.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                if file < 0 || libc::write(file, c"0".as_ptr().cast(), 1) != 1 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: see `enter`.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, enter) };
        account(&end(&mut command))
    };
    let quota = |usec| CpuQuota { quota_usec: Limit::Value(usec), period_usec: 100_000, burst_usec: 0 };
    cgroup.set_quota(&quota(20_000)).unwrap();
    let account = inside("0.3");
    let notes = account["notes"].to_string();
    assert!(account["throttled_s"].is_null() && notes.contains("held back whoever is in it"), "{account}");
    // One that nobody runs into throttles nothing.
    cgroup.set_quota(&quota(10_000_000)).unwrap();
    assert_eq!(inside("0.3")["throttled_s"], 0.0);
}

#[test]
fn children_count_even_those_nobody_waits_for() {
    // Two spinners in the background of a shell that is killed: orphans, accounted for until they end.
    let script =
        "(timeout 0.6 sh -c 'while :; do :; done' & timeout 0.6 sh -c 'while :; do :; done' &) ; exit 5";
    let account = Bed::new().account(&["--outliving", "wait", "--cpus", "0", "--", "sh", "-c", script]);
    assert_eq!(account["exit_status"], 5);
    let cpu = number(&account, "user_s") + number(&account, "sys_s");
    assert!(cpu > 0.05, "{account}");
    // Two on one CPU: each waits while the other runs. Only a per-task account of ended tasks can know that.
    let waited = number(&account, "waited_s");
    assert!(waited / cpu > 0.5, "{account}");
    assert_eq!(account["waited_source"], "taskstats");
}

#[test]
fn statuses_and_streams_are_the_commands() {
    let bed = Bed::new();
    for (script, status) in
        [("exit 0", 0), ("exit 42", 42), ("kill -TERM $$", 128 + 15), ("kill -9 $$", 128 + 9)]
    {
        bed.run(&["--", "sh", "-c", script]).with(status);
    }
    bed.run(&["--", "/no/such/program"]).with(127);
    bed.run(&["--", "/etc/passwd"]).with(126);
    bed.run(&["--cpus", "4095", "--", "true"]).refused(125, "4095");
    bed.run(&["--cpu-limit", "20%", "--instance", "t3.micro", "--", "true"])
        .refused(125, "--instance goes with");
    bed.run(&["--cpu-limit", "auto", "--burst", "5ms", "--", "true"]).refused(125, "--burst goes with");
    let mut child = bed
        .command(&["--cpu-limit", "90%", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"as it was\0\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"as it was\0\n");
    assert_eq!(bed.records(), 0);
}

#[test]
fn signals_reach_the_command() {
    // A shell cannot trap what it was started ignoring, as everything in the background of a script is with SIGINT.
    // SAFETY: back to the default disposition; no handler of ours is involved.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    let bed = Bed::new();
    for (signal, name) in [(libc::SIGTERM, "TERM"), (libc::SIGINT, "INT"), (libc::SIGUSR1, "USR1")] {
        let script = format!("trap 'exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child = bed
            .command(&["--", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The trap stands when the shell says so.
        let mut byte = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
        // SAFETY: our own child, not yet reaped.
        unsafe { libc::kill(child.id() as i32, signal) };
        assert_eq!(child.wait().unwrap().code(), Some(9), "{name}");
    }
}

#[test]
fn after_kill_9_the_next_start_cleans_up() {
    let bed = Bed::new();
    let mut killed = TestChild(
        bed.command(&["--cpu-limit", "30%", "--", "sleep", "300"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let pid = killed.0.id();
    // The command is in its group, and is `sleep` by now.
    let is_sleep = |pids: &[u32]| matches!(pids, [pid] if comm(*pid) == "sleep");
    until("the command is in its group", || is_sleep(&members(pid)));
    let sleeper = members(pid)[0] as i32;
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    assert!(!made_by("exec", pid).is_empty(), "the group went by itself");
    assert_eq!(bed.records(), 1);
    // The command goes on within its limit, so its group stays, and the next start says nothing and does no harm.
    bed.run(&["--cpu-limit", "50%", "--", "true"]).with(0);
    assert!(!made_by("exec", pid).is_empty());
    // SAFETY: the command of our own child, read from the group that no other task is in.
    unsafe { libc::kill(sleeper, libc::SIGKILL) };
    until("it has ended", || members(pid).is_empty());
    bed.run(&["--", "true"]).with(0);
    assert_eq!(made_by("exec", pid), Vec::<PathBuf>::new());
    assert_eq!(bed.records(), 0);
}

#[test]
fn the_command_finds_itself_within_its_bounds() {
    let script = "nice; grep Cpus_allowed_list /proc/self/status; cat /proc/self/cgroup";
    let bed = Bed::new();
    let bounds = ["--nice", "7", "--cpus", "0", "--shares", "512", "--cpu-limit", "80%"];
    let stdout = bed.run(&[&bounds[..], &["--", "sh", "-c", script]].concat()).stdout;
    assert!(stdout.starts_with("7\n"), "{stdout}");
    assert!(stdout.contains("Cpus_allowed_list:\t0\n"), "{stdout}");
    assert!(stdout.contains("/evenkeel-exec-"), "{stdout}");
    let outliving =
        bed.account(&["--cpu-limit", "80%", "--outliving", "end", "--", "sh", "-c", "sleep 300 & exit 0"]);
    assert_eq!(outliving["left_running"], serde_json::json!([]));
    assert_eq!(bed.records(), 0);
}

/// A group of the cpu controller with a quota.
struct Above(TestCgroup);

impl Above {
    fn new(name: &str, quota_usec: u64) -> Self {
        let above = Self(TestCgroup::new(name).unwrap());
        above.allow(quota_usec);
        above
    }

    /// Of 100 ms.
    fn allow(&self, quota_usec: u64) {
        let quota_usec = Limit::Value(quota_usec);
        self.0.set_quota(&CpuQuota { quota_usec, period_usec: 100_000, burst_usec: 0 }).unwrap();
    }

    /// The quota of the one group below, percent of one CPU.
    fn below_pct(&self) -> Option<f64> {
        let entries = std::fs::read_dir(self.0.dir()).ok()?.flatten().map(|entry| entry.path());
        let below =
            entries.filter(|path| path.is_dir()).map(|dir| Cgroup::new(dir, self.0.is_v2())).next()?;
        below.quota()?.pct()
    }
}

/// Finding 11: v1 refuses a group more than those above it have, and the command did not run at all.
#[test]
fn a_group_above_that_allows_less_bounds_the_limit_until_it_allows_more() {
    let above = Above::new("bound", 10_000);
    let bed = Bed::new();
    let exec = format!(
        "echo $$ > {}/cgroup.procs && exec {} --state-dir {} exec --cpu-limit 50% -- sleep 3",
        above.0.dir().display(),
        env!("CARGO_BIN_EXE_evenkeel"),
        bed.state.path().display()
    );
    let mut command = Command::new("sh");
    let child = command.args(["-c", &exec]).stderr(Stdio::piped()).spawn().unwrap();
    let becomes = |pct: f64| {
        looked_for(Duration::from_millis(20), Duration::from_secs(2), || match above.below_pct() {
            Some(now) if (now - pct).abs() < 0.1 => Ok(()),
            now => Err(format!("{now:?} instead of {pct} %")),
        });
    };
    becomes(10.0);
    above.allow(30_000);
    becomes(30.0);
    above.allow(80_000);
    becomes(50.0);
    Ended::of(&command, child.wait_with_output().unwrap()).says(0, "a group above allows 10.0 % only");
}

#[test]
fn with_end_nothing_outlives_a_kill_9_but_until_restore() {
    let bed = Bed::new();
    // The command has a child of its own, which the kernel does not tie to evenkeel.
    let script = "sleep 300 & exec sleep 301";
    let mut killed = TestChild(
        bed.command(&["--cpu-limit", "30%", "--outliving", "end", "--", "sh", "-c", script])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let pid = killed.0.id();
    until("both sleep", || members(pid).into_iter().filter(|pid| comm(*pid) == "sleep").count() == 2);
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    until("the command has ended with evenkeel", || members(pid).len() == 1);
    end(evenkeel(["restore"]).env("EVENKEEL_STATE_DIR", bed.state.path())).with(0);
    assert_eq!(made_by("exec", pid), Vec::<PathBuf>::new());
    assert_eq!(bed.records(), 0);
}
