//! One run of a command, accounted for: `sysbench`, `openssl speed`, a build, anything.
//!
//! CPU time and switches are the kernel's (`wait4`, with all descendants that were waited for). Waits, migrations and
//! CPUs are sampled from its threads twenty times a second, and the first process is read once more when it has ended:
//! what a thread waited in its last twentieth of a second may be missing.

use std::collections::HashMap;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_base::CpuSet;
use evenkeel_experiment::record::{Account, RunRecord};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use evenkeel_linux::children::end_with;
use evenkeel_linux::process::{self, threads};
use evenkeel_linux::schedstat;

/// How often threads are looked at.
const SAMPLE_MS: u64 = 50;
/// Output kept of a command, bytes: what it says at the end counts.
const OUTPUT: usize = 64 << 10;
/// How long the rest of its output is waited for once it has ended.
const DRAIN: Duration = Duration::from_millis(50);
/// Descendants looked at.
const MOST: usize = 4096;

/// Runs it once. Also gives what people should know about the run.
pub(super) fn run_once(words: &[String], stop: &AtomicBool) -> Result<(RunRecord, Option<String>), String> {
    let Some((program, arguments)) = words.split_first() else { return Err("command is empty".into()) };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let parent = std::process::id();
    // SAFETY: only async-signal-safe system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            end_with(parent, libc::SIGKILL)?;
            // As a shell would start it: the tenant's own timers are sharper.
            libc::prctl(libc::PR_SET_TIMERSLACK, 50_000, 0, 0, 0);
            Ok(())
        });
    }
    let mut child = command.spawn().map_err(|e| format!("cannot run {program}: {e}"))?;
    let pid = child.id();
    let output = child.stdout.take().map(Tail::of);
    let errors = child.stderr.take().map(Tail::of);
    let mut seen = Seen::default();
    watch(pid, &mut seen, stop);
    // It has ended and is not reaped: its own counters can still be read.
    seen.look(pid);
    let status = child.wait().map_err(|e| format!("waiting for {program}: {e}"))?;
    let text = |tail: Option<Tail>| tail.map(Tail::text).unwrap_or_default();
    let (output, errors) = (text(output), text(errors));
    let exit_status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    let note = (exit_status != 0 && !stop.load(Ordering::Relaxed)).then(|| {
        let said = output.lines().chain(errors.lines()).rfind(|line| !line.trim().is_empty()).unwrap_or("");
        let said: String = said.chars().take(200).collect();
        format!("{program} ended with status {exit_status}{}{said}", if said.is_empty() { "" } else { ": " })
    });
    let (events, events_per_s) = events_of(&output);
    let run = RunRecord {
        events,
        events_per_s,
        account: Account {
            waited_s: seen.waited_ns().map(|ns| ns as f64 / 1e9),
            migrations: seen.migrations(),
            ..Account::default()
        },
        cpus: Some(seen.cpus).filter(|cpus| !cpus.is_empty()),
        exit_status: Some(exit_status),
        ..RunRecord::default()
    };
    Ok((run, note))
}

/// Looks at its threads until it has ended; ends it when told to stop.
fn watch(pid: u32, seen: &mut Seen, stop: &AtomicBool) {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pidfd = raw.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    loop {
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: (SAMPLE_MS * 1_000_000) as _ };
        match &pidfd {
            Some(fd) => {
                let mut fds = [PollFd::new(fd, PollFlags::IN)];
                if poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
                    return;
                }
            }
            // Without pidfd (before 5.3) the caller's wait does the rest.
            None => return std::thread::sleep(Duration::from_millis(1)),
        }
        seen.look_at_all(pid);
        if stop.load(Ordering::Relaxed)
            && let Some(pid) = raw
        {
            // Not reaped, so the number is still its own.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// The last part of what comes out of a pipe, read by a thread of its own: descendants that outlive the command may
/// hold the pipe open for ever.
struct Tail {
    kept: Arc<Mutex<Vec<u8>>>,
    reader: std::thread::JoinHandle<()>,
}

impl Tail {
    fn of(pipe: impl Read + Send + 'static) -> Self {
        let kept: Arc<Mutex<Vec<u8>>> = Arc::default();
        let into = Arc::clone(&kept);
        Self { kept, reader: std::thread::spawn(move || read_tail(pipe, &into)) }
    }

    /// What is there once the command has ended; waits a moment for the last of it.
    fn text(self) -> String {
        let until = Instant::now() + DRAIN;
        while !self.reader.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
        let kept = self.kept.lock().unwrap_or_else(|e| e.into_inner());
        String::from_utf8_lossy(&kept).into_owned()
    }
}

fn read_tail(mut pipe: impl Read, into: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 8192];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(n) => {
                let mut kept = into.lock().unwrap_or_else(|e| e.into_inner());
                kept.extend_from_slice(&buffer[..n]);
                if kept.len() > 2 * OUTPUT {
                    let surplus = kept.len() - OUTPUT;
                    kept.drain(..surplus);
                }
            }
        }
    }
}

/// Events, and events a second, as the command itself says them.
///
/// `sysbench`: `total number of events`, `events per second`. `openssl speed`: the first rate of its last table (signs
/// a second for RSA).
pub(crate) fn events_of(output: &str) -> (Option<u64>, Option<f64>) {
    let after = |key: &str| {
        let line = output.lines().find_map(|line| line.trim().strip_prefix(key))?;
        let word = line.trim_start_matches([':', ' ']).split_ascii_whitespace().next()?;
        // As sysbench ends a time.
        figure(word.strip_suffix('s').unwrap_or(word))
    };
    let events = after("total number of events").map(|n| n as u64);
    if let Some(rate) = after("events per second").or_else(|| {
        let seconds = after("total time")?;
        (seconds >= SHORTEST_S).then_some(events? as f64 / seconds)
    }) {
        return (events, Some(rate));
    }
    let signs = output.lines().rev().find(|line| line.starts_with("rsa") && line.contains("bits"));
    let rate = signs.and_then(|line| {
        // rsa 2048 bits 0.000530s 0.000016s   1886.8  62500.0
        figure(line.split_ascii_whitespace().skip(3).find(|word| !word.ends_with('s'))?)
    });
    (events, rate)
}

/// Shortest time that a program prints, seconds; from less no rate is reckoned.
const SHORTEST_S: f64 = 1e-6;
/// Most that any program counts.
const MOST_EVENTS: f64 = 1e18;

/// A number that can be counted or measured: `nan` and `inf` are words that parse, too.
fn figure(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number| (0.0..=MOST_EVENTS).contains(number))
}

/// What was seen of its threads.
#[derive(Debug, Default)]
struct Seen {
    /// By thread number and start time.
    threads: HashMap<(u32, u64), Thread>,
    cpus: CpuSet,
}

#[derive(Debug, Clone, Copy, Default)]
struct Thread {
    waited_ns: Option<u64>,
    migrations: Option<u64>,
}

impl Seen {
    /// The process and its descendants.
    fn look_at_all(&mut self, pid: u32) {
        let mut pids = vec![pid];
        let mut next = 0;
        while next < pids.len() && pids.len() < MOST {
            let pid = pids[next];
            next += 1;
            self.look(pid);
            for tid in threads(pid) {
                let children = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"));
                let children = children.unwrap_or_default();
                pids.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
        }
    }

    fn look(&mut self, pid: u32) {
        for tid in threads(pid) {
            let dir = format!("/proc/{pid}/task/{tid}");
            let Ok(stat) = process::stat(pid, tid) else { continue };
            if let Some(cpu) = stat.cpu {
                self.cpus.insert(cpu);
            }
            let counted = std::fs::read(format!("{dir}/schedstat")).ok();
            let sched = std::fs::read_to_string(format!("{dir}/sched")).unwrap_or_default();
            let migrations = sched.lines().find(|line| line.starts_with("se.nr_migrations"));
            let thread = Thread {
                waited_ns: counted.and_then(|text| Some(schedstat::parse_bytes(&text)?.waited_ns)),
                migrations: migrations.and_then(|line| line.rsplit(':').next()?.trim().parse().ok()),
            };
            self.threads.insert((tid, stat.start_time), thread);
        }
    }

    fn waited_ns(&self) -> Option<u64> {
        self.threads.values().map(|t| t.waited_ns).sum()
    }

    fn migrations(&self) -> Option<u64> {
        self.threads.values().map(|t| t.migrations).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_the_commands_print_them() {
        let sysbench = "CPU speed:\n    events per second:   975.05\n\nGeneral statistics:\n    total time:                          \
                        1.0007s\n    total number of events:              976\n";
        assert_eq!(events_of(sysbench), (Some(976), Some(975.05)));
        let openssl = "                  sign    verify    sign/s verify/s\nrsa 2048 bits 0.000530s 0.000016s   1886.8  62500.0\n";
        assert_eq!(events_of(openssl), (None, Some(1886.8)));
        let time = "total time: 2.0s\ntotal number of events: 976";
        assert_eq!(events_of(time), (Some(976), Some(488.0)));
        let no_time = "total time: 1e-309s\ntotal number of events: 976";
        assert_eq!(events_of(no_time), (Some(976), None));
        for odd in ["nan", "inf", "-5", "1e300"] {
            let text = format!("events per second: {odd}\ntotal number of events: {odd}");
            assert_eq!(events_of(&text), (None, None), "{odd}");
            assert_eq!(events_of(&format!("rsa 2048 bits 1s 1s {odd} 1")), (None, None), "{odd}");
        }
        for text in ["", "events per second", "rsa bits", "rsa 2048 bits 1s", "total number of events: x"] {
            assert_eq!(events_of(text), (None, None), "{text}");
        }
    }

    #[test]
    fn a_command_is_accounted_for() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let stop = AtomicBool::new(false);
        let (run, note) = run_once(
            &words("sh -c exit\u{a0}3").iter().map(|w| w.replace('\u{a0}', " ")).collect::<Vec<_>>(),
            &stop,
        )
        .unwrap();
        assert_eq!(run.exit_status, Some(3));
        assert!(note.unwrap().contains("status 3"));
        assert!(run.account.waited_s.is_some() && run.cpus.is_some());
        let error = run_once(&words("/does/not/exist"), &stop).unwrap_err();
        assert!(error.contains("/does/not/exist"), "{error}");
    }

    #[test]
    fn a_descendant_that_holds_the_output_open_does_not_hold_up_the_run() {
        let stop = AtomicBool::new(false);
        let words = ["sh", "-c", "echo said; sleep 3 & exit 4"].map(str::to_owned);
        let begun = Instant::now();
        let (_, note) = run_once(&words, &stop).unwrap();
        assert!(note.unwrap().contains("said") && begun.elapsed() < Duration::from_secs(3));
    }

    #[test]
    fn what_a_command_says_of_its_failure_comes_before_what_it_printed() {
        let stop = AtomicBool::new(false);
        let note =
            |script: &str| run_once(&["sh", "-c", script].map(str::to_owned), &stop).unwrap().1.unwrap();
        assert!(note("echo no such file >&2; echo done; exit 1").ends_with("status 1: no such file"));
        assert!(note("echo done; exit 1").ends_with("status 1: done"));
    }

    #[test]
    fn told_to_stop_it_ends_the_command() {
        let stop = AtomicBool::new(true);
        let (run, note) = run_once(&["sleep".to_owned(), "60".to_owned()], &stop).unwrap();
        assert_eq!((run.exit_status, note), (Some(137), None));
    }
}
