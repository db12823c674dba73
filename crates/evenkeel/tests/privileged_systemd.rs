//! The units of the packages under a real systemd, which boots nothing but them. Needs root.

mod scene;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use evenkeel_linux::testing::{awaited, schedstat};
use scene::Process;

fn packaged(name: &str) -> String {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    std::fs::read_to_string(packaging.join(name)).unwrap()
}

/// A unit of the packages that runs a stand-in, which is ready at once, in a machine without mounts of its own and with no more than this.
fn stood_in_for(name: &str) -> String {
    packaged(name)
        .replace("/usr/local/bin/evenkeel", "/bin/sh /mnt/evenkeel")
        .replace("[Unit]", "[Unit]\nDefaultDependencies=no")
        .replace("Type=notify", "Type=simple")
        .replace("WatchdogSec=60", "")
        .replace("RestartSec=5", "RestartSec=1")
        .replace("StartLimitBurst=5", "StartLimitBurst=3")
        .replace("PrivateTmp=yes", "")
}

/// Waits for something, and says what the machine said when it does not come.
fn until<T>(machine: &Machine, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    awaited(120, || found().ok_or_else(|| format!("{what}: does not come: {}", machine.words())))
}

/// What the units are driven with, inside of a machine of its own: a stand-in for evenkeel, and what happens to it.
const STAND_IN: &str = r#"#!/bin/sh
case "$1" in
    run) : >/var/lib/evenkeel/journal; trap 'rm /var/lib/evenkeel/journal; exit 0' TERM; while :; do sleep 0.1; done ;;
    restore) rm -f /var/lib/evenkeel/journal; echo restored >>/var/lib/evenkeel/happened ;;
esac
"#;
const DRIVER: &str = r#"
say() { echo "$*" >>/var/lib/evenkeel/happened; }
state() { systemctl show --value --property ActiveState evenkeel.service; }
in_state() { for _ in $(seq 100); do [ "$(state)" = "$1" ] && return; sleep 0.1; done; say "not $1 but $(state)"; }
kill_it() { in_state active; sleep 0.3; systemctl kill --signal=KILL evenkeel.service; }
quiet() { for _ in $(seq 100); do [ "$(systemctl is-active evenkeel-restore.service)" = inactive ] && return; sleep 0.1; done; }
in_state active
say killed; kill_it; in_state activating; in_state active; quiet
say stopped; systemctl stop evenkeel.service; sleep 0.5; quiet
say stopped while a restart is due; systemctl start evenkeel.service; kill_it; in_state activating
systemctl stop evenkeel.service; quiet
systemctl reset-failed evenkeel.service
say killed too often; systemctl start evenkeel.service
for _ in 1 2 3; do kill_it; sleep 0.3; done; in_state failed; quiet
systemctl reset-failed evenkeel.service
say upgraded; systemctl start evenkeel.service; in_state active; sleep 0.3; . /mnt/common.sh; start; in_state active; quiet
say over; cp /var/lib/evenkeel/happened /mnt/happened
"#;

/// A kill is followed by a start that finds everything in force; where
/// none comes, everything is restored.
#[test]
fn systemd_restores_only_where_the_agent_does_not_start_again() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    for name in ["evenkeel.service", "evenkeel-restore.service"] {
        put(name, &stood_in_for(name));
    }
    put("evenkeel", STAND_IN);
    put("driver.sh", DRIVER);
    put("common.sh", &packaged("maintainer/common.sh"));
    put("driver.service", "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sh /mnt/driver.sh\n");
    put("only.target", "[Unit]\nDefaultDependencies=no\nWants=evenkeel.service driver.service\n");
    let machine = Machine::boot(dir.path());
    let happened = dir.path().join("happened");
    until(&machine, "the end", || happened.exists().then_some(()));
    let expected = "killed\nstopped\nstopped while a restart is due\nrestored\nkilled too often\nrestored\nupgraded\nover\n";
    assert_eq!(std::fs::read_to_string(happened).unwrap(), expected, "{}", machine.words());
}

/// A stand-in whose `restore` fails, or takes its time, and whose `run` has a wrong configuration, while a file of that name is there.
const REMOVED: &str = r#"#!/bin/sh
case "$1" in
    run) : >/var/lib/evenkeel/journal; [ ! -e /run/wrong ] || exit 2; while :; do sleep 0.1; done ;;
    serve) while :; do sleep 0.1; done ;;
    restore) while [ -e /run/slow ]; do sleep 0.1; done; [ ! -e /run/fails ] || exit 1; rm -f /var/lib/evenkeel/journal ;;
esac
"#;
/// What a package's removal does, refused first, and its installation, where packages may start nothing and where they may.
const REMOVAL: &str = r#"
say() { echo "$*" >>/run/happened; }
state() { echo "$(systemctl is-active evenkeel-serve.service) $(systemctl is-active evenkeel.service)"; }
comes() { for _ in $(seq 100); do [ "$(systemctl is-active "$1")" = "$2" ] && return; sleep 0.1; done; say "$1 is not $2"; }
sed 's#/usr/bin/evenkeel#/bin/sh /mnt/evenkeel#; s#/usr/sbin/policy-rc.d#/run/policy#' /mnt/common.sh >/run/common.sh; . /run/common.sh
systemctl --runtime enable evenkeel-serve.service
comes evenkeel-serve.service active; comes evenkeel.service active
: >/run/fails; stop_and_restore; say "refused with $?: $(state)"
rm /run/fails; : >/run/wrong; : >/run/slow
systemctl start evenkeel.service; comes evenkeel.service failed; comes evenkeel-restore.service activating
(sleep 2; rm /run/slow) & stop_and_restore; say "done with $?: $(state)"
say "failed units: $(systemctl list-units --failed --plain --no-legend 'evenkeel*')"
printf '#!/bin/sh\nexit 101\n' >/run/policy; chmod +x /run/policy; DPKG_MAINTSCRIPT_PACKAGE=evenkeel
start; say "forbidden: $(state)"; rm /run/policy; start; say "allowed: $(state)"
cp /run/happened /mnt/happening; mv /mnt/happening /mnt/happened
"#;

/// Where a removal is refused the package stays, and so does what watches. One that is done leaves no trace of a failure. What a
/// policy forbids to start is not started.
#[test]
fn packages_stop_and_start_what_they_should() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    for name in ["evenkeel.service", "evenkeel-serve.service", "evenkeel-restore.service"] {
        put(name, &stood_in_for(name));
    }
    put("evenkeel", REMOVED);
    put("driver.sh", REMOVAL);
    put("common.sh", &packaged("maintainer/common.sh"));
    put("driver.service", "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sh /mnt/driver.sh\n");
    wants(dir.path(), "evenkeel.service evenkeel-serve.service driver.service");
    let machine = Machine::boot(dir.path());
    let happened = dir.path().join("happened");
    until(&machine, "the end", || happened.exists().then_some(()));
    let expected = "refused with 1: active inactive\ndone with 0: inactive inactive\nfailed units: \n\
                    forbidden: inactive inactive\nallowed: active inactive\n";
    assert_eq!(std::fs::read_to_string(happened).unwrap(), expected, "{}", machine.words());
}

/// What drives the real program's services: it leaves both running until it is told that they were seen.
const CONFINED: &str = r#"
until [ -e /mnt/seen ]; do sleep 0.1; done
systemctl show --property Id --property ActiveState --property NRestarts evenkeel-serve.service evenkeel.service >/mnt/shown
systemctl stop evenkeel.service evenkeel-serve.service
systemctl show --property Id --property Result evenkeel-serve.service evenkeel.service >>/mnt/shown
: >/mnt/over
"#;

/// How the real program is told of its promise: 70 % of a CPU for what is called keel-favoured.
const PROMISED: &str = "EVENKEEL_RUN_OPTIONS=--config /mnt/config.toml --guarantees-only";

/// Starts a shell of a name that computes without an end.
const SPIN: &str = r#"spin() { "/mnt/$1" -c 'while :; do :; done' & };"#;

/// Puts into a directory what a machine needs for the real program: units of the packages, each with its environment, shells of
/// other names, and what runs `loads.sh` for another user on the first CPU. All that it starts are of one session: in the root
/// cgroup nice values act within a session only where sessions have autogroups.
fn put_real(dir: &Path, shells: &[&str], units: &[(&str, &str)]) {
    let put = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
    for (name, environment) in units {
        // Its own files, a machine without mounts of its own and with no more than this; nothing of its confinement.
        let unit = packaged(name)
            .replace("/usr/local/bin/evenkeel", "/mnt/evenkeel")
            .replace("[Unit]", "[Unit]\nDefaultDependencies=no")
            .replace(
                "[Service]",
                "[Service]\nStandardOutput=append:/mnt/said\nStandardError=append:/mnt/said",
            )
            .replace("EnvironmentFile=-/etc/default/evenkeel", &format!("Environment=\"{environment}\""))
            .replace("ConfigurationDirectory=evenkeel\n", "")
            .replace("PrivateTmp=yes", "");
        assert!(unit.contains("SystemCallFilter=") && unit.contains("CapabilityBoundingSet="), "{unit}");
        put(name, &unit);
    }
    put("config.toml", "[[guarantee]]\nscope = \"comm:keel-favoured\"\ncpu = \"70%\"\n");
    std::fs::copy(env!("CARGO_BIN_EXE_evenkeel"), dir.join("evenkeel")).unwrap();
    for name in shells {
        std::fs::copy("/bin/sh", dir.join(name)).unwrap();
    }
    put(
        "loads.service",
        "[Unit]\nDefaultDependencies=no\n[Service]\nUser=65534\nCPUAffinity=0\nExecStart=/bin/sh /mnt/loads.sh\n",
    );
    put("driver.service", "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sh /mnt/driver.sh\n");
    // Users other than root pass through to its programs.
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(dir, open).unwrap();
}

/// What a machine starts.
fn wants(dir: &Path, units: &str) {
    let target = format!("[Unit]\nDefaultDependencies=no\nWants={units}\n");
    std::fs::write(dir.join("only.target"), target).unwrap();
}

/// The real program, ready by its own word under its watchdog, does its work with the capabilities, calls and files that its units
/// leave it: it watches, and keeps a promise to a task of another user. (Programs in the kernel see the host's numbers, and this
/// machine has its own, so they are not loaded here.)
#[test]
fn services_do_their_work_within_their_confinement() {
    let _turn = scene::turn();
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    put_real(
        dir.path(),
        &["keel-favoured", "keel-rival"],
        &[
            ("evenkeel-serve.service", &format!("EVENKEEL_SERVE_OPTIONS=--listen 127.0.0.1:{port}")),
            ("evenkeel.service", PROMISED),
        ],
    );
    put("driver.sh", CONFINED);
    put("loads.sh", &format!("{SPIN} spin keel-favoured; spin keel-rival; wait"));
    wants(dir.path(), "evenkeel-serve.service evenkeel.service loads.service driver.service");
    let machine = Machine::boot(dir.path());
    let said = || std::fs::read_to_string(dir.path().join("said")).unwrap_or_default();

    until(&machine, "a page that names who runs", || {
        get(port, "/api/live")?.contains("keel-rival").then_some(())
    });
    let favoured = until(&machine, "the promised task", || pid_of("keel-favoured"));
    until(&machine, "a nice value for it", || (nice(favoured)? < 0).then_some(()));
    // Root's own rights would do for what the kernel executes at a crash.
    for unit in ["evenkeel-serve.service", "evenkeel.service"] {
        for path in
            ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/usr", "/sys/fs/cgroup/cgroup.procs"]
        {
            let may = path.starts_with("/sys/fs/cgroup") && unit == "evenkeel.service";
            assert_eq!(sees(unit, &["-w", path]), may, "{unit}: {path}");
        }
    }
    assert!(!sees("evenkeel-serve.service", &["-e", "/dev/kmsg"]));
    put("seen", "");
    until(&machine, "the end", || dir.path().join("over").exists().then_some(()));
    assert_eq!(nice(favoured), Some(0), "{}", said());
    let shown = std::fs::read_to_string(dir.path().join("shown")).unwrap();
    for (line, times) in [("ActiveState=active", 2), ("NRestarts=0", 2), ("Result=success", 2)] {
        assert_eq!(shown.lines().filter(|l| *l == line).count(), times, "{line}: {shown}\n{}", said());
    }
    for refused in ["not permitted", "ermission denied", "read-only file system"] {
        assert!(!said().contains(refused), "{}", said());
    }
}

/// What ends the real program, each way when it is told to, and tells what systemd makes of it.
const ENDED: &str = r#"
show() { systemctl show --value --property "$1" evenkeel.service; }
tell() { echo "$2" >/mnt/telling; mv /mnt/telling "/mnt/$1"; }
for how in STOP KILL; do
    until [ -e "/mnt/$how" ]; do sleep 0.1; done
    systemctl kill --kill-who=main --signal="$how" evenkeel.service
    while [ "$(show Result)" = success ]; do sleep 0.1; done
    tell "ended-$how" "$(show Result)"
    until [ "$(show ActiveState)" = active ]; do sleep 0.1; done
    tell "started-$how" "$(show NRestarts)"
done
until [ -e /mnt/seen ]; do sleep 0.1; done
systemctl stop evenkeel.service
tell over "$(show Result)"
"#;
/// One more competes from the moment of each end.
const RIVALS: &str = r#"
spin keel-favoured; spin keel-rival
for how in STOP KILL; do
    until [ -e "/mnt/$how" ]; do sleep 0.1; done
    spin "keel-more-$how"
done
wait"#;

/// The watchdog ends a program that hangs; after that, and after a kill, the next start goes on with the promise. That it is kept
/// is the new program's work: one more competes, so that what the old one left would not do.
#[test]
fn a_hang_and_a_kill_are_followed_by_a_start_that_keeps_the_promise() {
    let _turn = scene::turn();
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let told = |name: &str| std::fs::read_to_string(dir.path().join(name)).ok();
    let shells = ["keel-favoured", "keel-rival", "keel-more-STOP", "keel-more-KILL"];
    put_real(dir.path(), &shells, &[("evenkeel.service", PROMISED), ("evenkeel-restore.service", "")]);
    let unit = told("evenkeel.service").unwrap();
    put(
        "evenkeel.service",
        &unit.replace("WatchdogSec=60", "WatchdogSec=5").replace("RestartSec=5", "RestartSec=1"),
    );
    put("driver.sh", ENDED);
    put("loads.sh", &format!("{SPIN}{RIVALS}"));
    wants(dir.path(), "evenkeel.service loads.service driver.service");
    let machine = Machine::boot(dir.path());
    let favoured = until(&machine, "the promised task", || pid_of("keel-favoured"));
    let mut rivals = vec![until(&machine, "its rival", || pid_of("keel-rival"))];
    until(&machine, "a nice value for it", || (nice(favoured)? < 0).then_some(()));
    until(&machine, "the promised share", || keeps(favoured, &rivals));

    let ends = [("STOP", "watchdog\n", "1\n"), ("KILL", "signal\n", "2\n")];
    for (signal, result, starts) in ends {
        put(signal, "");
        rivals.push(until(&machine, "one more rival", || pid_of(&format!("keel-more-{signal}"))));
        // A killed one leaves everything in force for the next. One that systemd woke, to tell it that it hung, restored.
        let in_force = || {
            assert!(
                nice(favoured) < Some(0) || signal == "STOP",
                "{:?}: {}",
                nice(favoured),
                machine.words()
            );
        };
        for (what, expected) in [("ended", result), ("started", starts)] {
            let what = format!("{what}-{signal}");
            let seen = until(&machine, &what, || {
                in_force();
                told(&what)
            });
            assert_eq!(seen, expected, "{what}: {}", machine.words());
        }
        until(&machine, "the promised share again", || {
            in_force();
            keeps(favoured, &rivals)
        });
        assert!(nice(favoured) < Some(0), "{:?}: {}", nice(favoured), machine.words());
    }
    put("seen", "");
    let result = until(&machine, "the end", || told("over"));
    assert_eq!((result.as_str(), nice(favoured)), ("success\n", Some(0)), "{}", machine.words());
}

/// Whether a task has at least 66 % of what it and its rivals get together: 70 % are promised, and others of this host may take
/// from all of them.
fn keeps(favoured: i32, rivals: &[i32]) -> Option<()> {
    let ran = |pid: &i32| schedstat(*pid as u32)[0] as f64;
    let look = || (ran(&favoured), rivals.iter().map(ran).sum::<f64>());
    let before = look();
    std::thread::sleep(Duration::from_secs(2));
    let after = look();
    let (own, others) = (after.0 - before.0, after.1 - before.1);
    (own >= 0.66 * (own + others)).then_some(())
}

/// The body of a page, if it comes.
fn get(port: u16, path: &str) -> Option<String> {
    evenkeel_fetch::http::get(&format!("http://127.0.0.1:{port}{path}"), Duration::from_secs(20)).ok()
}

fn pid_of(comm: &str) -> Option<i32> {
    pid_whose("comm", |name| name.trim_end() == comm)
}

/// The first task of whose file in `/proc` this holds.
fn pid_whose(file: &str, is: impl Fn(&str) -> bool) -> Option<i32> {
    let is_it =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/{file}")).is_ok_and(|text| is(&text));
    evenkeel_linux::process::all().into_iter().find(is_it).map(|pid| pid as i32)
}

/// What `test` says to who has the rights of root and the mounts of a unit.
fn sees(unit: &str, test: &[&str]) -> bool {
    let of_unit = pid_whose("cgroup", |text| text.lines().any(|line| line.ends_with(&format!("/{unit}"))));
    let mut command = std::process::Command::new("nsenter");
    command.args(["--mount", "--target", &of_unit.unwrap().to_string(), "test"]).args(test);
    command.status().unwrap().success()
}

fn nice(pid: i32) -> Option<i32> {
    rustix::process::getpriority_process(rustix::process::Pid::from_raw(pid)).ok()
}

/// Machines booted so far: each has a cgroup of its own.
static MACHINES: AtomicU32 = AtomicU32::new(0);

/// A systemd in namespaces and a cgroup of its own, which end with it. `/mnt` is the directory given.
struct Machine {
    process: Option<Process>,
    dir: PathBuf,
    group: PathBuf,
}

impl Machine {
    fn boot(dir: &Path) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let v2 =
            mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|line| line[2] == "cgroup2");
        let group = Path::new(v2.expect("cgroup v2, for systemd's own")[1]).join(format!(
            "evenkeel-systemd-{}-{}",
            std::process::id(),
            MACHINES.fetch_add(1, Relaxed)
        ));
        std::fs::create_dir(&group).unwrap();
        let boot = r#"
            umount -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup
            mount --bind "$UNITS" /mnt
            for at in /run /var/lib; do mount -t tmpfs none $at; done
            mkdir -p /run/systemd/system; cp /mnt/*.service /mnt/*.target /run/systemd/system/
            export container=docker
            exec /lib/systemd/systemd --system --unit=only.target --log-target=console --show-status=0"#;
        let enter = format!(
            "echo 0 >{}/cgroup.procs && exec unshare --mount --cgroup --pid --fork --kill-child --mount-proc \
             --propagation private sh -c \"$BOOT\" >$UNITS/words 2>&1",
            group.display()
        );
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &enter]).env("BOOT", boot).env("UNITS", dir);
        Self { process: Some(Process::spawn(command)), dir: dir.to_owned(), group }
    }

    fn words(&self) -> String {
        let text = |name| std::fs::read(self.dir.join(name)).unwrap_or_default();
        ["words", "said"].map(|name| String::from_utf8_lossy(&text(name)).into_owned()).concat()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.process.take());
        for _ in 0..100 {
            // Those below first; its processes take a moment to end.
            let find = ["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"];
            let _ = std::process::Command::new("find").arg(&self.group).args(find).output();
            if !self.group.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
