//! Cgroups that somebody manages: systemd's units, Docker's containers and libvirt's machines are changed through
//! their own interface, so that the owner knows and does not write over it. Where it has no word for a value, or does
//! not answer, the file is written instead.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_base::{CpuSet, GroupRef, Knob, Limit, Setting, is_of_user, unit_of_path};
use evenkeel_linux::cgroup;

use crate::libvirt;

/// How long an owner may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long one that took longer is not asked: the loop does not wait for each change anew.
const SILENCE: Duration = Duration::from_secs(60);

/// Where `virsh` finds libvirt, and what says otherwise.
const LIBVIRT: &str = "qemu:///system";
const LIBVIRT_URI: &str = "LIBVIRT_DEFAULT_URI";

/// The address of this host's libvirt. The environment may name another socket of it, never another host: a machine there may have
/// the number of one here.
fn libvirt_uri() -> String {
    std::env::var(LIBVIRT_URI).ok().filter(|uri| is_of_this_host(uri)).unwrap_or_else(|| LIBVIRT.to_owned())
}

fn is_of_this_host(uri: &str) -> bool {
    uri.starts_with("qemu:///system") || uri.starts_with("qemu+unix:///system")
}

/// Runs a program and waits for it. Replaced in tests.
pub trait Run: Send {
    /// Whether the program is there and its service answers on this host.
    fn has(&self, program: &str) -> bool;

    /// Runs it; fails with what it said.
    fn run(&self, program: &str, args: &[String]) -> Result<(), String>;

    /// Whether systemd keeps this property of a unit, as it was told while the unit ran.
    fn keeps(&self, _unit: &str, _property: &str) -> bool {
        false
    }
}

/// Where systemd keeps what it is told by `set-property --runtime`, of units and of transient ones (`unit_drop_in_dir` in its
/// `src/core/unit.c`), in a file for each property.
const DROP_INS: [&str; 2] = ["/run/systemd/system.control", "/run/systemd/transient"];

#[derive(Debug, Clone, Copy)]
pub struct RunProgram;

impl Run for RunProgram {
    fn has(&self, program: &str) -> bool {
        // What makes the program useful: sd_booted(3). Docker remembers what it was told while it does not run, too.
        let is_there = match program {
            "systemctl" => Path::new("/run/systemd/system").exists(),
            "docker" => true,
            "virsh" => Path::new("/var/run/libvirt").exists() || libvirt_uri() != LIBVIRT,
            _ => return false,
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        is_there && std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
    }

    fn run(&self, program: &str, args: &[String]) -> Result<(), String> {
        let mut command = Command::new(program);
        if program == "virsh" {
            command.env(LIBVIRT_URI, libvirt_uri());
        }
        let own = std::process::id();
        // SAFETY: async-signal-safe system calls on two numbers. A change that is on its way when this process is killed must not arrive
        // after `restore`.
        unsafe { command.pre_exec(move || evenkeel_linux::children::end_with(own, libc::SIGKILL)) };
        let mut child = command
            .args(args)
            // What went wrong is told by words ([`is_owners_answer`]).
            .env("LC_ALL", "C")
            // Ctrl-C and `timeout` signal the whole group; an undo must not be hit half-way.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        let until = Instant::now() + PATIENCE;
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    let mut said = [0; 1000];
                    let length = child.stderr.take().map_or(0, |mut stderr| {
                        // Whoever the program leaves behind holds it open.
                        let _ = rustix::io::ioctl_fionbio(&stderr, true);
                        stderr.read(&mut said).unwrap_or(0)
                    });
                    let said = String::from_utf8_lossy(&said[..length]);
                    return Err(format!("{program}: {} ({status})", said.trim()));
                }
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("{program}: no answer within {} s", PATIENCE.as_secs()));
                }
            }
        }
    }

    fn keeps(&self, unit: &str, property: &str) -> bool {
        let file = format!("{unit}.d/50-{property}.conf");
        DROP_INS.iter().any(|dir| Path::new(dir).join(&file).exists())
    }
}

/// The owners present on this host.
pub(crate) struct Owners {
    run: Box<dyn Run>,
    docker: bool,
    systemd: bool,
    libvirt: bool,
    /// Who did not answer in time, and when.
    silent: RefCell<BTreeMap<&'static str, Instant>>,
    patience: Duration,
}

impl Owners {
    pub fn find(run: Box<dyn Run>) -> Self {
        let (docker, systemd, libvirt) = (run.has("docker"), run.has("systemctl"), run.has("virsh"));
        Self { run, docker, systemd, libvirt, silent: RefCell::default(), patience: PATIENCE }
    }

    fn ask(&self, program: &'static str, args: &[String]) -> Result<(), String> {
        if self.silent.borrow().get(program).is_some_and(|since| since.elapsed() < SILENCE) {
            return Err(format!("{program}: not asked, for it did not answer a moment ago"));
        }
        let began = Instant::now();
        let answer = self.run.run(program, args);
        if answer.is_err() && began.elapsed() >= self.patience {
            self.silent.borrow_mut().insert(program, Instant::now());
        }
        answer
    }

    /// Has the owner make the change. `None`: nobody owns the cgroup, or its owner has no word for the value. The
    /// owner may round the value or take a moment: the caller looks at the file.
    pub fn write(&self, group: &GroupRef, to: &Setting) -> Option<Result<(), String>> {
        let (program, args) = self.command(group, to)?;
        Some(self.ask(program, &args))
    }

    /// Has libvirt pin the thread in this cgroup. `None`: it has no word for it, or there is no libvirt here.
    pub fn pin(&self, path: &str, cpus: &CpuSet) -> Option<Result<(), String>> {
        let args = libvirt::pin_arguments(path, cpus).filter(|_| self.libvirt)?;
        Some(self.ask("virsh", &args))
    }

    /// Whether the owner keeps the value beyond a reboot: Docker writes it to the container's configuration, systemd
    /// is told `--runtime`.
    pub fn remembers(&self, group: &GroupRef, knob: Knob) -> bool {
        let expressible = matches!((knob, group.v2), (Knob::Weight, false) | (Knob::Quota | Knob::Cpuset, _));
        self.docker && expressible && container(group).is_some()
    }

    /// Whether the owner keeps the value for the next cgroup of this name: what it [remembers](Self::remembers), and what systemd keeps of a
    /// unit that it may start again. Processes of a scope are not systemd's to start.
    pub fn keeps(&self, group: &GroupRef, knob: Knob) -> bool {
        if self.remembers(group, knob) {
            return true;
        }
        let (Some(unit), Some(property)) = (unit(group), property(knob, group.v2)) else { return false };
        self.systemd && !unit.ends_with(".scope") && self.run.keeps(unit, property)
    }

    fn command(&self, group: &GroupRef, to: &Setting) -> Option<(&'static str, Vec<String>)> {
        if self.docker
            && let Some(id) = container(group)
        {
            let mut args = vec!["update".to_owned()];
            args.extend(docker_options(to, group.v2)?);
            args.push(id);
            return Some(("docker", args));
        }
        // Before systemd, whose scope it is: libvirt's own view is to stay true.
        if self.libvirt
            && let Some(args) = libvirt::arguments(group, to)
        {
            return Some(("virsh", args));
        }
        if self.systemd
            && let Some(unit) = unit(group)
        {
            let mut args = ["set-property", "--runtime", "--", unit].map(str::to_owned).to_vec();
            args.extend(unit_properties(to, group.v2)?);
            return Some(("systemctl", args));
        }
        None
    }
}

/// Whether an owner itself refused, and not its program, which did not reach it.
pub(crate) fn is_owners_answer(why: &str) -> bool {
    // systemctl has the same words before what systemd refuses and what it could not tell it, and ends by itself with either.
    const NOT_REACHED: [&str; 6] = [
        "Failed to connect",
        "timed out",
        "Connection re",
        "not connected",
        "isconnected",
        "D-Bus connection",
    ];
    match why.split_once(':') {
        Some(("systemctl", why)) => {
            why.contains("(exit status") && !NOT_REACHED.iter().any(|words| why.contains(words))
        }
        _ => why.contains("response from daemon"),
    }
}

/// The Docker container whose own cgroup this is.
fn container(group: &GroupRef) -> Option<String> {
    let (above, name) = group.path.rsplit_once('/').filter(|(above, _)| !is_of_user(above))?;
    let parent = above.rsplit('/').next().unwrap_or_default();
    let (runtime, id) = cgroup::container(name, parent, false)?;
    (runtime == "docker").then_some(id)
}

/// The unit of the system's manager whose cgroup this is. Units of users' managers, and of containers', are not its own.
fn unit(group: &GroupRef) -> Option<&str> {
    let found = unit_of_path(&group.path).filter(|found| found.user.is_none())?;
    (!found.unit.starts_with('-') && !found.unit.starts_with('_')).then_some(found.unit)
}

fn docker_options(to: &Setting, v2: bool) -> Option<Vec<String>> {
    let options = match to {
        // On v2 Docker takes v1 shares only and converts them: no exact weight can be said.
        Setting::Weight(shares) if !v2 => vec!["--cpu-shares".to_owned(), shares.to_string()],
        Setting::Quota(quota) => {
            let limit = quota.quota_usec.value().map_or("-1".to_owned(), |usec| usec.to_string());
            vec!["--cpu-period".to_owned(), quota.period_usec.to_string(), "--cpu-quota".to_owned(), limit]
        }
        Setting::Cpuset(cpus) if !cpus.is_empty() => vec!["--cpuset-cpus".to_owned(), cpus.to_string()],
        _ => return None,
    };
    Some(options)
}

/// The property under which systemd keeps what [`unit_properties`] says.
fn property(knob: Knob, v2: bool) -> Option<&'static str> {
    match (knob, v2) {
        (Knob::Weight | Knob::GroupIdle, true) => Some("CPUWeight"),
        (Knob::Weight, false) => Some("CPUShares"),
        (Knob::Quota, _) => Some("CPUQuota"),
        (Knob::Cpuset, true) => Some("AllowedCPUs"),
        _ => None,
    }
}

/// See systemd.resource-control(5). An empty value takes the setting back to the default.
fn unit_properties(to: &Setting, v2: bool) -> Option<Vec<String>> {
    let properties = match (to, v2) {
        (Setting::Weight(100), true) => vec!["CPUWeight=".to_owned()],
        (Setting::Weight(weight), true) => vec![format!("CPUWeight={weight}")],
        (Setting::Weight(1024), false) => vec!["CPUShares=".to_owned()],
        (Setting::Weight(shares), false) => vec![format!("CPUShares={shares}")],
        (Setting::GroupIdle(true), true) => vec!["CPUWeight=idle".to_owned()],
        (Setting::GroupIdle(false), true) => vec!["CPUWeight=".to_owned()],
        (Setting::Quota(quota), _) => {
            let limit = match quota.quota_usec {
                Limit::Max => "CPUQuota=".to_owned(),
                Limit::Value(_) => format!("CPUQuota={:.2}%", quota.pct().unwrap_or(100.0)),
            };
            let period = match quota.period_usec {
                100_000 => "CPUQuotaPeriodSec=".to_owned(),
                usec => format!("CPUQuotaPeriodSec={usec}us"),
            };
            vec![limit, period]
        }
        (Setting::Cpuset(cpus), true) => vec![format!("AllowedCPUs={cpus}")],
        _ => return None,
    };
    Some(properties)
}

#[cfg(test)]
mod tests;
