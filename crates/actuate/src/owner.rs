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
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use evenkeel_base::{CpuQuota, CpuSet};

    type Calls = Arc<Mutex<Vec<String>>>;

    struct Recorder {
        calls: Calls,
        fail: bool,
    }

    impl Run for Recorder {
        fn has(&self, _program: &str) -> bool {
            true
        }

        fn run(&self, program: &str, args: &[String]) -> Result<(), String> {
            self.calls.lock().unwrap().push(format!("{program} {}", args.join(" ")));
            if self.fail { Err("no such container".to_owned()) } else { Ok(()) }
        }

        fn keeps(&self, unit: &str, property: &str) -> bool {
            unit.starts_with("kept") && property != "AllowedCPUs"
        }
    }

    fn owners(fail: bool) -> (Owners, Calls) {
        let calls = Calls::default();
        (Owners::find(Box::new(Recorder { calls: calls.clone(), fail })), calls)
    }

    fn group(path: &str, v2: bool) -> GroupRef {
        GroupRef { path: path.into(), v2 }
    }

    #[test]
    fn each_owner_is_asked_in_its_own_words() {
        let id = "0123456789abcdef".repeat(4);
        let (plain, scope) = (format!("/docker/{id}"), format!("/system.slice/docker-{id}.scope"));
        let quota =
            Setting::Quota(CpuQuota { quota_usec: Limit::Value(12_345), period_usec: 50_000, burst_usec: 0 });
        let cases = [
            (&plain, false, Setting::Weight(512), format!("docker update --cpu-shares 512 {id}")),
            (&scope, true, quota.clone(), format!("docker update --cpu-period 50000 --cpu-quota 12345 {id}")),
            (
                &plain,
                false,
                Setting::Quota(CpuQuota::UNLIMITED),
                format!("docker update --cpu-period 100000 --cpu-quota -1 {id}"),
            ),
            (
                &plain,
                true,
                Setting::Cpuset("0,2".parse().unwrap()),
                format!("docker update --cpuset-cpus 0,2 {id}"),
            ),
        ];
        for (path, v2, to, expected) in cases {
            let (owners, calls) = owners(false);
            assert_eq!(owners.write(&group(path, v2), &to), Some(Ok(())));
            assert_eq!(*calls.lock().unwrap(), [expected]);
        }
        let unit = "/system.slice/web.service";
        let cases = [
            (true, Setting::Weight(50), "CPUWeight=50"),
            (true, Setting::Weight(100), "CPUWeight="),
            (false, Setting::Weight(1024), "CPUShares="),
            (true, quota, "CPUQuota=24.69% CPUQuotaPeriodSec=50000us"),
            (true, Setting::Quota(CpuQuota::UNLIMITED), "CPUQuota= CPUQuotaPeriodSec="),
            (true, Setting::GroupIdle(true), "CPUWeight=idle"),
        ];
        for (v2, to, expected) in cases {
            let (owners, calls) = owners(false);
            assert_eq!(owners.write(&group(unit, v2), &to), Some(Ok(())));
            let expected = format!("systemctl set-property --runtime -- web.service {expected}");
            assert_eq!(*calls.lock().unwrap(), [expected]);
        }
    }

    #[test]
    fn libvirt_is_asked_for_its_machines_before_systemd() {
        let (owners, calls) = owners(false);
        let machine = group("/machine.slice/machine-qemu\\x2d3\\x2dweb.scope", true);
        assert_eq!(owners.write(&machine, &Setting::Weight(200)), Some(Ok(())));
        // What libvirt has no word for is its scope's.
        assert_eq!(owners.write(&machine, &Setting::Quota(CpuQuota::UNLIMITED)), Some(Ok(())));
        let cpu = "1".parse().unwrap();
        assert_eq!(owners.pin("/machine/qemu-3-web.libvirt-qemu/vcpu0", &cpu), Some(Ok(())));
        assert_eq!(owners.pin("/machine/qemu-3-web.libvirt-qemu/emulator", &cpu), None);
        let scope = "machine-qemu\\x2d3\\x2dweb.scope";
        assert_eq!(
            *calls.lock().unwrap(),
            [
                "virsh schedinfo 3 --live --set cpu_shares=200".to_owned(),
                format!("systemctl set-property --runtime -- {scope} CPUQuota= CPUQuotaPeriodSec="),
                "virsh vcpupin 3 --vcpu 0 --cpulist 1 --live".to_owned(),
            ]
        );
    }

    #[test]
    fn libvirt_is_asked_on_this_host_alone() {
        for uri in ["qemu:///system", "qemu+unix:///system?socket=/run/x"] {
            assert!(is_of_this_host(uri), "{uri}");
        }
        for uri in
            ["qemu+ssh://root@other/system", "qemu://other/system", "test:///default", "qemu:///session", ""]
        {
            assert!(!is_of_this_host(uri), "{uri}");
        }
    }

    #[test]
    fn what_nobody_owns_or_can_express_is_left_to_the_files() {
        let (owners, calls) = owners(false);
        let id = "0123456789abcdef".repeat(4);
        let of_user = format!("/user.slice/user@1000.service/user.slice/docker-{id}.scope");
        assert_eq!(owners.write(&group(&of_user, true), &Setting::Quota(CpuQuota::UNLIMITED)), None);
        for path in
            ["/a", "/docker/short", "/user.slice/user@1000.service/app.slice", "/docker", "/x.slice/-.slice"]
        {
            assert_eq!(owners.write(&group(path, true), &Setting::Weight(5)), None, "{path}");
        }
        assert_eq!(owners.write(&group(&format!("/docker/{id}"), true), &Setting::Weight(5)), None);
        // A container's own systemd has it; this host's may have another of that name.
        let inner = format!("/docker/{id}/system.slice/nginx.service");
        assert_eq!(owners.write(&group(&inner, true), &Setting::Weight(5)), None);
        assert_eq!(owners.write(&group("/a.service", false), &Setting::RtRuntime(5)), None);
        assert!(calls.lock().unwrap().is_empty());
        assert!(owners.remembers(&group(&format!("/docker/{id}"), true), Knob::Quota));
        assert!(!owners.remembers(&group("/a.service", true), Knob::Quota));
    }

    #[test]
    fn what_an_owner_keeps_for_the_next_cgroup_of_a_name_is_known() {
        let id = "0123456789abcdef".repeat(4);
        let (owners, _) = owners(false);
        let quota = Setting::Quota(CpuQuota::UNLIMITED);
        let settings = [Setting::Weight(5), Setting::GroupIdle(true), quota, Setting::Cpuset(CpuSet::new())];
        for (path, v2, kept) in [
            (format!("/system.slice/docker-{id}.scope"), true, vec![Knob::Quota, Knob::Cpuset]),
            ("/kept.slice/kept.service".to_owned(), true, vec![Knob::Weight, Knob::GroupIdle, Knob::Quota]),
            ("/kept.slice".to_owned(), false, vec![Knob::Weight, Knob::Quota]),
            ("/kept.scope".to_owned(), true, vec![]),
            ("/other.service".to_owned(), true, vec![]),
            ("/user.slice/user@1000.service/kept.service".to_owned(), true, vec![]),
        ] {
            for setting in &settings {
                let knob = setting.knob();
                assert_eq!(owners.keeps(&group(&path, v2), knob), kept.contains(&knob), "{path}: {knob:?}");
                // A property is named for each word there is, and for no other.
                let says = unit_properties(setting, v2).is_some();
                assert_eq!(property(knob, v2).is_some(), says, "{knob:?}, v2: {v2}");
            }
        }
        assert!(!RunProgram.keeps("no-such-unit.service", "CPUWeight"));
    }

    #[test]
    fn an_owner_that_hangs_is_not_waited_for_at_each_change() {
        let (mut owners, calls) = owners(true);
        let write = |owners: &Owners, path: &str| owners.write(&group(path, true), &Setting::Weight(5));
        // What answers in time is asked each time.
        assert!([0, 1].iter().all(|_| write(&owners, "/a.service").is_some()));
        assert_eq!(calls.lock().unwrap().len(), 2);
        owners.patience = Duration::ZERO;
        let said: Vec<_> = [0, 1, 2].iter().map(|_| write(&owners, "/a.service").unwrap()).collect();
        assert_eq!(calls.lock().unwrap().len(), 3, "{said:?}");
        assert!(said[2].as_ref().unwrap_err().contains("a moment ago"), "{said:?}");
        // Others are.
        assert!(write(&owners, "/machine.slice/machine-qemu\\x2d3\\x2dweb.scope").is_some());
        assert_eq!(calls.lock().unwrap().len(), 4);
        // Who hangs as well does not make it heard again.
        write(&owners, "/a.service");
        assert_eq!(calls.lock().unwrap().len(), 4);
        owners.silent.borrow_mut().values_mut().for_each(|since| *since -= SILENCE);
        write(&owners, "/a.service");
        assert_eq!(calls.lock().unwrap().len(), 5, "after a while it is asked again");
    }

    #[test]
    fn an_owner_that_was_not_reached_has_not_refused() {
        for (why, is_answer) in [
            ("docker: Error response from daemon: No such container: feed (exit status: 1)", true),
            ("docker: Cannot connect to the Docker daemon (exit status: 1)", false),
            ("systemctl: Failed to set unit properties: Unit a.service not found. (exit status: 1)", true),
            ("systemctl: Failed to set unit properties: Connection timed out (exit status: 1)", false),
            ("systemctl: Failed to connect to bus: No such file or directory (exit status: 1)", false),
            ("systemctl: Failed to set unit properties: Connection reset by peer (exit status: 1)", false),
            ("systemctl: Failed to set unit properties: Remote peer disconnected (exit status: 1)", false),
            ("systemctl:  (signal: 9 (SIGKILL))", false),
            ("systemctl: Resource temporarily unavailable (os error 11)", false),
            ("systemctl: no answer within 10 s", false),
            ("systemctl: not asked, for it did not answer a moment ago", false),
        ] {
            assert_eq!(is_owners_answer(why), is_answer, "{why}");
        }
    }

    #[test]
    fn an_owner_that_refuses_is_heard() {
        let (owners, _) = owners(true);
        let refused = owners.write(&group("/a.service", true), &Setting::Weight(5));
        assert_eq!(refused, Some(Err("no such container".to_owned())));
        let said = RunProgram.run("sh", &["-c".into(), "echo why >&2; exit 3".into()]).unwrap_err();
        assert!(said.contains("why") && said.contains('3'), "{said}");
        assert!(RunProgram.run("/nonexistent/program", &[]).is_err());
    }

    #[test]
    fn neither_who_is_left_behind_nor_what_is_no_utf8_hides_why_a_program_failed() {
        let began = Instant::now();
        for script in ["sleep 8 & exit 3", "sleep 8 & echo why >&2; exit 3", r"printf 'why\377' >&2; exit 3"]
        {
            let said = RunProgram.run("sh", &["-c".into(), script.into()]).unwrap_err();
            assert!(said.contains("why") == script.contains("why") && said.contains('3'), "{script}: {said}");
        }
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    }
}
