//! Processes of a trial: each runs under `evenkeel exec`, which bounds it, counts its CPU time, and ends whatever it
//! leaves behind; when we are killed, that wrapper gets SIGTERM and cleans up all the same.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_linux::pid_stat::{self, PidStat};

/// How often a process is looked at.
const POLL: Duration = Duration::from_millis(5);
/// Most of an output that is read: its end.
const MOST: u64 = 4 << 20;

#[derive(Debug, Clone)]
pub struct Runner {
    /// This program's own file, which has the command `exec`.
    pub binary: PathBuf,
    /// Where `exec` keeps its records.
    pub state_dir: PathBuf,
}

/// What to start.
#[derive(Debug, Clone, Default)]
pub(super) struct Order {
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub dir: PathBuf,
    /// Bounds, as arguments of `exec`.
    pub bounds: Vec<String>,
    /// Outputs are written to `PREFIX.out` and `PREFIX.err`, the account to `PREFIX.account`.
    pub prefix: PathBuf,
}

#[derive(Debug)]
pub(super) struct Output {
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    pub fn all(self) -> String {
        self.stdout + &self.stderr
    }
}

/// A process and its descendants; ended on drop.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    prefix: PathBuf,
    status: Option<ExitStatus>,
    patience: Duration,
}

fn beside(prefix: &Path, extension: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(extension);
    name.into()
}

impl Runner {
    pub(super) fn start(&self, order: &Order, patience: Duration) -> io::Result<Process> {
        let out = File::create(beside(&order.prefix, ".out"))?;
        let err = File::create(beside(&order.prefix, ".err"))?;
        let account = beside(&order.prefix, ".account");
        let _ = fs::remove_file(&account);
        let mut command = Command::new(&self.binary);
        command
            .arg("--state-dir")
            .arg(&self.state_dir)
            .args(["exec", "--outliving", "end", "--account"])
            .arg(&account)
            .args(&order.bounds)
            .arg("--")
            .args(&order.command)
            .envs(&order.env)
            .current_dir(if order.dir.as_os_str().is_empty() { Path::new(".") } else { &order.dir })
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            // Ctrl-C on the terminal is for us; we end our processes in order.
            .process_group(0);
        evenkeel_linux::children::bind(&mut command, libc::SIGTERM);
        Ok(Process { child: command.spawn()?, prefix: order.prefix.clone(), status: None, patience })
    }
}

impl Process {
    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Waits for its end; `None` when `stop` or `within` came first.
    pub fn wait(&mut self, within: Duration, stop: &AtomicBool) -> Option<ExitStatus> {
        let until = Instant::now() + within;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if stop.load(Ordering::Relaxed) || Instant::now() >= until {
                return None;
            }
            std::thread::sleep(POLL);
        }
    }

    /// What it wrote so far, the last of it.
    pub fn output(&self) -> Output {
        let read = |extension| {
            let mut bytes = Vec::new();
            let read = File::open(beside(&self.prefix, extension)).and_then(|mut file| {
                let length = file.seek(SeekFrom::End(0))?;
                file.seek(SeekFrom::Start(length.saturating_sub(MOST)))?;
                file.take(MOST).read_to_end(&mut bytes)
            });
            let _ = read;
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Output { stdout: read(".out"), stderr: read(".err") }
    }

    /// CPU time of the command with its descendants, seconds: the account's after its end; before, of those alive and of those that
    /// were waited for.
    pub fn cpu_s(&mut self) -> Option<f64> {
        if self.ended().is_some() {
            let text = fs::read_to_string(beside(&self.prefix, ".account")).ok()?;
            let account: serde_json::Value = serde_json::from_str(&text).ok()?;
            return Some(account.get("user_s")?.as_f64()? + account.get("sys_s")?.as_f64()?);
        }
        let top = self.child.id();
        let ended = stat_of(top).map_or(0, |stat| stat.children_ns);
        let alive = below(top).into_iter().map(|(_, stat)| stat.cpu_ns + stat.children_ns);
        Some((ended + alive.sum::<u64>()) as f64 / 1e9)
    }

    /// Asks it to end, then kills it; waits until all of it is gone.
    pub fn end(&mut self) {
        if self.ended().is_some() {
            return;
        }
        let pid = self.child.id();
        // Not reaped yet, so the number is still the wrapper's.
        signal(pid, libc::SIGTERM);
        let never = AtomicBool::new(false);
        if self.wait(self.patience, &never).is_some() {
            return;
        }
        // Read this instant; the wrapper reaps them, so a number is reused no sooner than it has done so.
        for (descendant, _) in below(pid) {
            signal(descendant, libc::SIGKILL);
        }
        if self.wait(Duration::from_secs(5), &never).is_none() {
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
    }
}

fn stat_of(pid: u32) -> Option<PidStat> {
    evenkeel_linux::Root::host().parse(format!("proc/{pid}/stat"), pid_stat::parse).ok()
}

/// Processes below one.
fn below(top: u32) -> Vec<(u32, PidStat)> {
    let mut all: BTreeMap<u32, PidStat> = BTreeMap::new();
    for pid in evenkeel_linux::process::all() {
        all.extend(stat_of(pid).map(|stat| (pid, stat)));
    }
    let is_below = |mut pid: u32| {
        // Parents are older: no cycle, but a number may be reused while we read, so bound the way up.
        for _ in 0..64 {
            match all.get(&pid).map(|stat| stat.ppid) {
                Some(parent) if parent == top => return true,
                Some(parent) if parent > 1 => pid = parent,
                _ => return false,
            }
        }
        false
    };
    let below: Vec<u32> = all.keys().copied().filter(|pid| is_below(*pid)).collect();
    below.into_iter().filter_map(|pid| Some((pid, all.remove(&pid)?))).collect()
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: takes numbers only.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) fn how(status: ExitStatus) -> String {
    match status.code() {
        Some(code) if code > 128 && code < 192 => format!("was killed by signal {}", code - 128),
        Some(127) => "could not be started: no such command".into(),
        Some(126) => "could not be executed".into(),
        Some(code) => format!("ended with status {code}"),
        None => "was killed".into(),
    }
}
