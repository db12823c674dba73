//! A Docker Engine of the test's own: started by hand, with its state in a temporary directory, no network, a cgroup
//! parent of its own; all of it is gone when the guard is dropped. Needs root and Debian's docker.io, containerd,
//! runc, busybox-static.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_linux::testing::awaited;
use tempfile::TempDir;

/// The daemon.
pub struct Docker {
    daemon: Option<Child>,
    dir: TempDir,
    parent: String,
}

/// Image made of busybox alone.
pub const IMAGE: &str = "busybox:test";

impl Docker {
    /// Starts the daemon and imports [`IMAGE`].
    pub fn start(name: &str) -> Self {
        // A short path: a socket's may have 107 bytes.
        let dir = tempfile::Builder::new().prefix("ek-docker-").tempdir_in("/tmp").unwrap();
        let at = |file: &str| dir.path().join(file).display().to_string();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let parent = format!("/evenkeel-{name}-{}", std::process::id());
        fs::write(dir.path().join("daemon.json"), "{}").unwrap();
        let daemon = Command::new("dockerd")
            .args(["--config-file", &at("daemon.json"), "--host", &format!("unix://{}", at("docker.sock"))])
            .args(["--data-root", &at("data"), "--exec-root", &at("exec"), "--pidfile", &at("pid")])
            .args(["--cgroup-parent", &parent, "--bridge", "none", "--iptables=false", "--ip6tables=false"])
            .args(["--storage-driver", "vfs", "--exec-opt", "native.cgroupdriver=cgroupfs"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("dockerd must be installed (Debian: docker.io)");
        let docker = Self { daemon: Some(daemon), dir, parent };
        awaited(60, || {
            let log = fs::read_to_string(docker.dir.path().join("log")).unwrap_or_default();
            let answers =
                docker.command().args(["version"]).output().is_ok_and(|output| output.status.success());
            answers.then_some(()).ok_or_else(|| format!("dockerd does not answer:\n{log}"))
        });
        docker.import();
        docker
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("docker.sock")
    }

    /// `docker` pointed at this daemon.
    pub fn command(&self) -> Command {
        let mut command = Command::new("docker");
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path());
        command.args(["--host", &format!("unix://{}", self.socket().display())]);
        command
    }

    /// Runs `docker ARGS` and returns its output, trimmed.
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.command().args(args).output().unwrap();
        assert!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn import(&self) {
        let root = self.dir.path().join("rootfs");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::copy(busybox(), root.join("bin/busybox")).unwrap();
        std::os::unix::fs::symlink("busybox", root.join("bin/sh")).unwrap();
        let tar = self.dir.path().join("rootfs.tar");
        let made = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg(".").status().unwrap();
        assert!(made.success());
        self.run(&["import", &tar.display().to_string(), IMAGE]);
    }
}

fn busybox() -> &'static Path {
    let places = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
    places.into_iter().find(|path| path.exists()).expect("busybox must be installed (Debian: busybox-static)")
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Ok(list) = self.command().args(["ps", "-aq"]).output() {
            for id in String::from_utf8_lossy(&list.stdout).split_whitespace() {
                let _ = self.command().args(["rm", "-f", id]).output();
            }
        }
        if let Some(mut daemon) = self.daemon.take() {
            // Asked to end, it ends the containerd it started, too.
            let _ = Command::new("kill").arg(daemon.id().to_string()).status();
            let start = Instant::now();
            while daemon.try_wait().is_ok_and(|status| status.is_none()) {
                if start.elapsed() > Duration::from_secs(20) {
                    let _ = daemon.kill();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        unmount_below(self.dir.path());
        // The groups of the containers are gone; the parent made for them is not.
        let hierarchies =
            fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
        for hierarchy in hierarchies.chain(["/sys/fs/cgroup".into()]) {
            let _ = fs::remove_dir(hierarchy.join(self.parent.trim_start_matches('/')));
        }
    }
}

/// Unmounts what a daemon left mounted below a directory of ours.
fn unmount_below(dir: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let mut below: Vec<&str> = points.filter(|point| Path::new(point).starts_with(dir)).collect();
    below.sort_unstable();
    for point in below.iter().rev() {
        let _ = Command::new("umount").arg("-l").arg(point).status();
    }
}
