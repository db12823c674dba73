//! `exec --cpu-limit auto` against a hypervisor played by an outer cgroup, beside no limit and fixed ones.
//!
//!     governor BINARY RULE [--cpu-s 4] [--scale 40] [--limits 15,18,20,22,25] -- COMMAND..
//!
//! RULE: none, window, shared, credits. All guests run side by side, each in a cgroup of its own whose quota the rule
//! sets every 10 ms, started a second apart, so that all meet the same machine. Without a COMMAND each runs `evenkeel load
//! spin`-like work of `--cpu-s` CPU seconds. Told is how long each took, relative to the best fixed limit.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use evenkeel_lab::tenant::cgroup::{Hierarchies, LabGroup};
use evenkeel_model::credit::{Meter, Rule};

const TICK: Duration = Duration::from_millis(10);

/// One guest.
struct Guest {
    name: String,
    group: LabGroup,
    usage: PathBuf,
    child: Child,
    meter: Meter,
    started: Instant,
    ended: Option<Duration>,
    usage_ns: u64,
    limit: Option<u64>,
    account: PathBuf,
    held: u32,
}

fn rule(name: &str, scale: f64) -> Option<Rule> {
    Some(match name {
        "none" => Rule::None,
        // 100 s, 20 %, 97 %, so many times faster.
        "window" => Rule::Window {
            window_s: 100.0 / scale,
            above: 0.20,
            below: 0.20,
            stolen: 0.97,
            counts_stolen: true,
        },
        "shared" => Rule::Constant { stolen: 0.45 },
        // Half of the job is covered by credits.
        "credits" => Rule::Credits { start: 2.0 / 60.0, per_hour: 6.0, cap: 10.0 },
        _ => return None,
    })
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The limit of the guest's own quota: of the group below ours, whichever it is. CPUs.
fn own_limit(dir: &Path) -> Option<f64> {
    for entry in fs::read_dir(dir).ok()?.flatten() {
        let (quota, period) = if entry.path().join("cpu.max").exists() {
            let max = text(&entry.path().join("cpu.max"));
            let (quota, period) = max.trim().split_once(' ')?;
            (quota.parse::<f64>().ok(), period.parse::<f64>().ok())
        } else {
            let read = |name: &str| text(&entry.path().join(name)).trim().parse::<f64>().ok();
            (read("cpu.cfs_quota_us"), read("cpu.cfs_period_us"))
        };
        if let (Some(quota), Some(period)) = (quota, period)
            && quota > 0.0
        {
            return Some(quota / period);
        }
    }
    None
}

impl Guest {
    fn usage_ns(&self) -> u64 {
        let text = text(&self.usage);
        if self.usage.ends_with("cpu.stat") {
            let usec = text.lines().find_map(|l| l.strip_prefix("usage_usec ")?.parse::<u64>().ok());
            return usec.unwrap_or(0) * 1000;
        }
        text.trim().parse().unwrap_or(0)
    }

    /// Sets what is given, CPUs; `None`: all.
    fn give(&mut self, share: Option<f64>) {
        let dir = self.group.cpu_dir().to_owned();
        // The kernel takes no quota below 1 ms: the period grows instead.
        let (quota, period) = match share {
            None => (None, 100_000),
            Some(share) => {
                let period = (1000.0 / share.max(1e-3)).clamp(10_000.0, 1_000_000.0);
                (Some((share * period).max(1000.0) as u64), period as u64)
            }
        };
        if quota == self.limit {
            return;
        }
        self.limit = quota;
        if self.group.group_ref().v2 {
            let quota = quota.map_or_else(|| "max".into(), |q| q.to_string());
            let _ = fs::write(dir.join("cpu.max"), format!("{quota} {period}"));
        } else {
            let _ = fs::write(dir.join("cpu.cfs_quota_us"), "-1");
            let _ = fs::write(dir.join("cpu.cfs_period_us"), period.to_string());
            let _ =
                fs::write(dir.join("cpu.cfs_quota_us"), quota.map_or_else(|| "-1".into(), |q| q.to_string()));
        }
    }

    /// One step of the rule.
    fn step(&mut self, seconds: f64) {
        if self.ended.is_none() && self.child.try_wait().ok().flatten().is_some() {
            self.ended = Some(self.started.elapsed());
        }
        let usage = self.usage_ns();
        let given = usage.saturating_sub(self.usage_ns) as f64 / 1e9 / seconds;
        self.usage_ns = usage;
        let cap = own_limit(self.group.cpu_dir()).unwrap_or(1.0).min(1.0);
        let holds_back = self.limit.is_some();
        // A guest that is held back wants what its own limit leaves it; for a moment after, too, since quotas are
        // given by periods.
        self.held = if holds_back && self.ended.is_none() { 3 } else { self.held.saturating_sub(1) };
        let demand = if self.held > 0 { cap.max(given) } else { given };
        self.meter.pass(demand.min(1.0), given.min(1.0), seconds);
        let share = self.meter.given(cap);
        let back = share < 0.999 * cap;
        self.give(back.then_some(share));
    }
}

fn start(
    binary: &str,
    name: &str,
    limit: Option<&str>,
    command: &[String],
    rule: Rule,
    hierarchies: &Hierarchies,
    state: &Path,
) -> Result<Guest, String> {
    let clean: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let group = LabGroup::make(hierarchies, &format!("evenkeel-lab-{}-0-{clean}", std::process::id()))
        .map_err(|e| e.to_string())?;
    let own = group.cpu_dir().file_name().map(PathBuf::from).unwrap_or_default();
    let mut doors = vec![group.cpu_dir().join("cgroup.procs")];
    let mut usage = group.cpu_dir().join("cpu.stat");
    let acct = Path::new("/sys/fs/cgroup/cpuacct").join(&own);
    if !group.group_ref().v2 {
        usage = acct.join("cpuacct.usage");
        if acct != group.cpu_dir() {
            doors.push(acct.join("cgroup.procs"));
        }
    }
    let files: Vec<File> = doors
        .iter()
        .map(|p| OpenOptions::new().write(true).open(p).map_err(|e| format!("{}: {e}", p.display())))
        .collect::<Result<_, _>>()?;
    let account = state.join(format!("{clean}.json"));
    let mut run = Command::new(binary);
    run.arg("--state-dir").arg(state.join(&clean)).arg("exec").arg("--account").arg(&account);
    if let Some(limit) = limit {
        run.arg("--cpu-limit").arg(limit);
    }
    run.arg("--").args(command).stdin(Stdio::null()).stdout(Stdio::null());
    // SAFETY: only writes to descriptors opened before the fork.
    unsafe {
        run.pre_exec(move || {
            for file in &files {
                if libc::write(file.as_raw_fd(), c"0".as_ptr().cast(), 1) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0);
            Ok(())
        });
    }
    let child = run.spawn().map_err(|e| format!("{binary}: {e}"))?;
    Ok(Guest {
        name: name.to_owned(),
        group,
        usage,
        child,
        meter: Meter::new(rule),
        started: Instant::now(),
        ended: None,
        usage_ns: 0,
        limit: None,
        account,
        held: 0,
    })
}

fn option<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1)).map(String::as_str)
}

fn main() -> ExitCode {
    match go() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn go() -> Result<(), String> {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let (arguments, command) = match all.iter().position(|a| a == "--") {
        Some(at) => (&all[..at], all[at + 1..].to_vec()),
        None => (&all[..], Vec::new()),
    };
    let [binary, name, ..] = arguments else {
        return Err("usage: governor BINARY RULE [options] [-- COMMAND..]".into());
    };
    let number = |name: &str, or: f64| option(arguments, name).and_then(|t| t.parse().ok()).unwrap_or(or);
    let (cpu_s, scale, within) = (number("--cpu-s", 4.0), number("--scale", 40.0), number("--within", 55.0));
    let rule =
        rule(name, scale).ok_or_else(|| format!("no rule {name:?}: none, window, shared or credits"))?;
    let limits = option(arguments, "--limits").unwrap_or("");
    let command = if command.is_empty() {
        let loops = (cpu_s * 1.0e6) as u64;
        vec!["sh".into(), "-c".into(), format!("i=0; while [ $i -lt {loops} ]; do i=$((i+1)); done")]
    } else {
        command
    };
    let state = std::env::temp_dir().join(format!("evenkeel-governor-{}", std::process::id()));
    fs::create_dir_all(&state).map_err(|e| e.to_string())?;
    let hierarchies = Hierarchies::find().map_err(|e| e.to_string())?;
    let mut waiting: Vec<(String, Option<String>)> = Vec::new();
    waiting.push(("auto".into(), Some("auto".into())));
    for limit in limits.split(',').filter(|l| !l.is_empty()) {
        waiting.push((format!("{limit} %"), Some(format!("{limit}%"))));
    }
    waiting.push(("no limit".into(), None));
    waiting.reverse();
    let began = Instant::now();
    let apart = Duration::from_secs_f64(number("--apart", 1.5));
    let mut guests: Vec<Guest> = Vec::new();
    let mut last = Instant::now();
    let result = loop {
        if began.elapsed() >= apart * guests.len() as u32
            && let Some((name, limit)) = waiting.pop()
        {
            match start(binary, &name, limit.as_deref(), &command, rule, &hierarchies, &state) {
                Ok(guest) => guests.push(guest),
                Err(error) => break Err(error),
            }
        }
        std::thread::sleep(TICK.saturating_sub(last.elapsed()));
        let seconds = last.elapsed().as_secs_f64().max(1e-6);
        last = Instant::now();
        for guest in &mut guests {
            guest.step(seconds);
        }
        if waiting.is_empty() && guests.iter().all(|g| g.ended.is_some())
            || began.elapsed().as_secs_f64() > within
        {
            break Ok(());
        }
    };
    let time = |g: &Guest| g.ended.map(|t| t.as_secs_f64());
    let fixed = guests.iter().filter(|g| g.name != "auto").filter_map(time).fold(f64::INFINITY, f64::min);
    println!("{:>10} {:>10} {:>10} {:>9}", "LIMIT", "TIME s", "CPU s", "TO BEST");
    for guest in &mut guests {
        let cpu = guest.usage_ns() as f64 / 1e9;
        match time(guest) {
            Some(t) => println!("{:>10} {t:>10.2} {cpu:>10.2} {:>9.3}", guest.name, t / fixed),
            None => {
                let t = guest.started.elapsed().as_secs_f64();
                println!(
                    "{:>10} {:>10} {cpu:>10.2} {:>9}",
                    guest.name,
                    format!(">{t:.0}"),
                    format!(">{:.2}", t / fixed)
                );
            }
        }
    }
    for guest in &mut guests {
        guest.give(None);
        if guest.ended.is_none() {
            // SAFETY: our own child, not waited for yet.
            unsafe { libc::kill(guest.child.id() as i32, libc::SIGTERM) };
        }
        let _ = guest.child.wait();
        let account: Option<serde_json::Value> = serde_json::from_str(&text(&guest.account)).ok();
        if guest.name == "auto"
            && let Some(notes) = account.as_ref().and_then(|a| a["notes"].as_array())
        {
            notes.iter().filter_map(|n| n.as_str()).for_each(|n| println!("{n}"));
        }
    }
    let _ = std::io::stdout().flush();
    let _ = fs::remove_dir_all(&state);
    result
}
