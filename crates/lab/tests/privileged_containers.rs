//! Tenants in real containers, with a Docker Engine of the test's own (Debian's docker.io).

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::binary;
use evenkeel_lab::tenant::{Layout, Starter};
use evenkeel_workload::Kind;
use evenkeel_workload::duty::{Duty, DutyKind};
use evenkeel_workload::load::LoadSpec;

/// A dockerd with everything in a directory of its own and no network; stopped on drop.
struct Dockerd {
    child: Child,
    dir: tempfile::TempDir,
}

impl Dockerd {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let child = Command::new("dockerd")
            .args(["--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-masq=false"])
            .args(["--data-root", &at("data"), "--exec-root", &at("exec"), "--pidfile", &at("pid")])
            .args(["--host", &format!("unix://{}", at("socket"))])
            .args(["--cgroup-parent", &Self::cgroup_parent()])
            .stdout(Stdio::null())
            .stderr(fs::File::create(at("log")).unwrap())
            .spawn()
            .expect("dockerd is needed: install Debian's docker.io");
        let dockerd = Self { child, dir };
        let until = Instant::now() + Duration::from_secs(60);
        while !dockerd.docker(&["version"]).0 {
            let log = fs::read_to_string(dockerd.dir.path().join("log")).unwrap();
            assert!(Instant::now() < until, "dockerd does not answer:\n{log}");
            std::thread::sleep(Duration::from_millis(200));
        }
        dockerd
    }

    /// Not the usual `/docker`, which stays behind when the daemon ends and may be somebody's.
    fn cgroup_parent() -> String {
        format!("/evenkeel-lab-test-{}", std::process::id())
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Whether a `docker` command succeeded, and what it printed.
    fn docker(&self, arguments: &[&str]) -> (bool, String) {
        let host = format!("unix://{}", self.socket().display());
        let output = Command::new("docker").args(["-H", &host]).args(arguments).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        // SAFETY: signals a child that was not waited for yet.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
        let name = Self::cgroup_parent();
        let mounts = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
        for mount in mounts.chain([PathBuf::from("/sys/fs/cgroup")]) {
            let _ = fs::remove_dir(mount.join(name.trim_start_matches('/')));
        }
    }
}

#[test]
fn loads_run_in_containers_and_are_gone_afterwards() {
    let dockerd = Dockerd::start();
    let duty = Duty {
        percent: 2.0,
        period: Duration::from_millis(20),
        jitter: 0.0,
        kind: DutyKind::Closed,
        seed: 1,
    };
    for (place, containers) in [(Layout::ContainerEach, 2), (Layout::OneContainer, 1)] {
        let mut specs = vec![LoadSpec::new(Kind::Duty(duty.clone())).named("ek-inside"); 2];
        specs[1].common.threads = Some(2);
        let tenants = Starter::new(binary(), place).engine(dockerd.socket()).hold(&specs).unwrap();
        assert_eq!(tenants.members.len(), 3);
        let mut ids: Vec<&str> = tenants.members.iter().map(|m| m.container.as_deref().unwrap()).collect();
        ids.dedup();
        assert_eq!(ids.len(), containers, "{place:?}");
        let start = tenants.release();
        let until = Instant::now() + Duration::from_secs(20);
        while !(0..3).all(|i| tenants.progress(i).unwrap().cycles > 3) {
            assert!(Instant::now() < until, "{place:?}: not working");
            std::thread::sleep(Duration::from_millis(10));
        }
        for (index, member) in tenants.members.iter().enumerate() {
            let comm = fs::read_to_string(format!("/proc/{}/task/{}/comm", member.pid, member.tid)).unwrap();
            assert_eq!(comm, "ek-inside\n");
            let path = &member.cgroup.as_ref().unwrap().path;
            assert!(path.contains(member.container.as_deref().unwrap()), "{path}");
            assert!(tenants.progress(index).unwrap().started_ns >= start);
        }
        let (_, running) = dockerd.docker(&["ps", "-q", "--no-trunc"]);
        assert_eq!(running.lines().count(), containers);
        assert!(ids.iter().all(|id| running.contains(id)));
        let pids: Vec<u32> = tenants.members.iter().map(|m| m.pid).collect();
        drop(tenants);
        assert!(pids.iter().all(|pid| !Path::new("/proc").join(pid.to_string()).exists()));
        assert_eq!(dockerd.docker(&["ps", "-aq"]).1, "");
        assert_eq!(dockerd.docker(&["images", "-q"]).1, "");
        let own = format!("evenkeel-lab-{}-", std::process::id());
        let left =
            fs::read_dir("/dev/shm").unwrap().filter_map(|e| e.unwrap().file_name().into_string().ok());
        assert_eq!(left.filter(|n| n.starts_with(&own)).count(), 0);
    }
}

#[test]
fn without_an_engine_the_error_says_what_to_do() {
    let duty =
        Duty { percent: 2.0, period: Duration::from_millis(20), jitter: 0.0, kind: DutyKind::Open, seed: 1 };
    let spec = LoadSpec::new(Kind::Duty(duty));
    let starter = Starter::new(binary(), Layout::ContainerEach).engine("/no/such/socket");
    let error = starter.hold(&[spec]).unwrap_err().to_string();
    assert!(error.contains("dockerd"), "{error}");
}
