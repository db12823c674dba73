//! What commands make for themselves, cgroups and directories, after they were killed. A program of its own: every
//! `evenkeel restore` at the same time would clear up, too. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

use scene::{Process, run, text};

#[test]
fn what_a_killed_command_had_made_for_itself_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["prove", "--mixes", "1"]);
    let mut prove = Process::spawn(command);
    let name = format!("evenkeel-lab-{}-", prove.pid());
    let is_there = || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts = mounts
            .lines()
            .filter(|line| line.contains(" - cgroup"))
            .map(|line| line.split(' ').nth(4).unwrap());
        mounts.chain(["/tmp"]).any(|at| {
            let mut names =
                std::fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.file_name());
            names.any(|found| found.to_string_lossy().starts_with(&name))
        })
    };
    for _ in 0..600 {
        if is_there() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(is_there(), "it made nothing");
    prove.0.kill().unwrap();
    prove.0.wait().unwrap();
    assert!(is_there(), "nothing was left");
    let mut told = String::new();
    // Its loads end with it, which takes the kernel a moment.
    for _ in 0..100 {
        let output = run(dir.path(), &["restore"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        told.push_str(&text(&output.stdout));
        if !is_there() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(!is_there(), "{told}");
    assert!(told.contains("removed that a killed"), "{told}");
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

/// The units under a real systemd, which boots nothing but them: a kill is followed by a start that finds everything in force; where
/// none comes, everything is restored.
#[test]
fn systemd_restores_only_where_the_agent_does_not_start_again() {
    let dir = tempfile::tempdir().unwrap();
    let packaging = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let read = |name: &str| std::fs::read_to_string(packaging.join(name)).unwrap();
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    for name in ["evenkeel.service", "evenkeel-restore.service"] {
        // A machine without mounts of its own and with no more than this. A stand-in is ready at once.
        let unit = read(name)
            .replace("/usr/local/bin/evenkeel", "/bin/sh /mnt/evenkeel")
            .replace("[Unit]", "[Unit]\nDefaultDependencies=no")
            .replace("Type=notify", "Type=simple")
            .replace("WatchdogSec=60", "")
            .replace("RestartSec=5", "RestartSec=1")
            .replace("StartLimitBurst=5", "StartLimitBurst=3")
            .replace("PrivateTmp=yes", "");
        put(name, &unit);
    }
    put("evenkeel", STAND_IN);
    put("driver.sh", DRIVER);
    put("common.sh", &read("maintainer/common.sh"));
    put("driver.service", "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sh /mnt/driver.sh\n");
    put("only.target", "[Unit]\nDefaultDependencies=no\nWants=evenkeel.service driver.service\n");
    let machine = Machine::boot(dir.path());
    let happened = dir.path().join("happened");
    let began = std::time::Instant::now();
    while !happened.exists() {
        assert!(began.elapsed().as_secs() < 120, "it does not end: {}", machine.words());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let expected = "killed\nstopped\nstopped while a restart is due\nrestored\nkilled too often\nrestored\nupgraded\nover\n";
    assert_eq!(std::fs::read_to_string(happened).unwrap(), expected, "{}", machine.words());
}

/// A systemd in namespaces and a cgroup of its own, which end with it. `/mnt` is the directory given.
struct Machine {
    process: Option<Process>,
    dir: std::path::PathBuf,
    group: std::path::PathBuf,
}

impl Machine {
    fn boot(dir: &std::path::Path) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let v2 =
            mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|line| line[2] == "cgroup2");
        let group = std::path::Path::new(v2.expect("cgroup v2, for systemd's own")[1])
            .join(format!("evenkeel-systemd-{}", std::process::id()));
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
        text(&std::fs::read(self.dir.join("words")).unwrap_or_default())
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
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}
