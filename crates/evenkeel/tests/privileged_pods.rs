//! Tenants in pods of a real CRI runtime: a containerd of the test's own, with an image made on the spot.

mod program;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use evenkeel_experiment::record::{CellRecord, Ended, Record, TenantRecord};
use evenkeel_linux::testing::{awaited, made_by, until};
use program::{end, evenkeel};

const IMAGE: &str = "localhost/evenkeel-sandbox:test";

/// containerd with everything in a directory and a mount namespace of its own; ended on drop, with its shims.
struct Containerd {
    child: Child,
    dir: tempfile::TempDir,
    /// Directories it makes at fixed places, if they were not there.
    fixed: Vec<PathBuf>,
}

impl Containerd {
    fn start() -> Self {
        // A short path: a socket's may have 107 bytes.
        let dir = tempfile::Builder::new().prefix("ek-cri-").tempdir_in("/tmp").unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        // A sandbox is to be killed last when memory is short; a test machine may lack CAP_SYS_RESOURCE for that.
        let config = format!(
            "version = 2\nroot = \"{}\"\nstate = \"{}\"\n[grpc]\n  address = \"{}\"\n[ttrpc]\n  address = \"{}\"\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\n  path = \"{}\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"{IMAGE}\"\n  restrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"native\"\n",
            at("root"),
            at("state"),
            at("socket"),
            at("ttrpc"),
            at("opt")
        );
        fs::write(at("config.toml"), config).unwrap();
        let fixed =
            ["/run/containerd"].map(PathBuf::from).into_iter().filter(|path| !path.exists()).collect();
        let log = fs::File::create(at("log")).unwrap();
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "slave", "containerd", "--config", &at("config.toml")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("unshare is needed");
        let containerd = Self { child, dir, fixed };
        awaited(60, || match containerd.ctr(&["version"]).status.success() {
            true => Ok(()),
            false => Err(fs::read_to_string(containerd.dir.path().join("log")).unwrap()),
        });
        containerd
    }

    fn socket(&self) -> String {
        self.dir.path().join("socket").display().to_string()
    }

    fn ctr(&self, args: &[&str]) -> Output {
        let mut command = Command::new("ctr");
        command.args(["--address", &self.socket(), "--namespace", "k8s.io"]).args(args);
        command.output().expect("ctr is needed: install Debian's containerd")
    }

    /// Ids of all containers, those of sandboxes included.
    fn containers(&self) -> Vec<String> {
        let output = self.ctr(&["containers", "list", "--quiet"]);
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }

    /// Makes and imports an image of busybox alone, which sleeps.
    fn import(&self) {
        let at = |name: &str| self.dir.path().join(name);
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
        let busybox = busybox.into_iter().find(|path| path.exists()).expect("busybox-static is needed");
        fs::create_dir_all(at("image/rootfs/bin")).unwrap();
        fs::copy(busybox, at("image/rootfs/bin/busybox")).unwrap();
        let tar = |directory: &str, file: &str, what: &[&str]| {
            let mut command = Command::new("tar");
            command.arg("-C").arg(at(directory)).arg("-cf").arg(at(file)).args(what);
            assert!(command.status().unwrap().success());
        };
        tar("image/rootfs", "image/layer.tar", &["."]);
        let sum = Command::new("sha256sum").arg(at("image/layer.tar")).output().unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap().split(' ').next().unwrap().to_owned();
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = serde_json::json!({
            "architecture": architecture, "os": "linux",
            "config": {"Entrypoint": ["/bin/busybox", "sleep", "1000000"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{sum}")]},
        });
        let manifest =
            serde_json::json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
        fs::write(at("image/config.json"), config.to_string()).unwrap();
        fs::write(at("image/manifest.json"), manifest.to_string()).unwrap();
        tar("image", "image.tar", &["manifest.json", "config.json", "layer.tar"]);
        let file = at("image.tar").display().to_string();
        let imported = self.ctr(&["images", "import", "--snapshotter", "native", &file]);
        assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    }

    /// `evenkeel lab run FILE` on this runtime.
    fn lab(&self, file: &Path, out: &Path) -> Command {
        let mut command = evenkeel(["lab", "run"]);
        command.arg(file).arg("--out").arg(out).env_remove("EVENKEEL_POD_IMAGE");
        command.env("CONTAINER_RUNTIME_ENDPOINT", format!("unix://{}", self.socket()));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for id in self.containers() {
            self.ctr(&["tasks", "kill", "--signal", "SIGKILL", "--all", &id]);
        }
        // SAFETY: signals a child that was not waited for yet.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
        // Shims outlive it; they have its socket's directory on their command line.
        let ours = self.dir.path().display().to_string();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let cmdline = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let cmdline = String::from_utf8_lossy(&cmdline);
            if cmdline.contains("containerd-shim") && cmdline.contains(&ours) {
                let pid: i32 = entry.file_name().to_string_lossy().parse().unwrap();
                // SAFETY: a shim of ours; a number of a process that ended meanwhile is not used again so soon.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
        for dir in &self.fixed {
            let _ =
                Command::new("find").arg(dir).args(["-depth", "-type", "d", "-empty", "-delete"]).status();
        }
    }
}

#[test]
fn pods_are_tenants_with_the_limits_of_kubernetes_containers() {
    let containerd = Containerd::start();
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("pods.toml"), dir.path().join("results"));
    fs::write(
        &file,
        "name = 'pods'\ncpus = '0'\n\
         [[tenant]]\nname = 'p'\nplace = 'pod'\nunits = '1 3'\nload = 'spin'\nrun_s = 3\n\
         [[tenant]]\nname = 'q'\nplace = 'pod'\nquota_pct = 10\ncommand = ['sh', '-c', 'i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done']\n",
    )
    .unwrap();

    // What is missing is said: the image, then the runtime.
    let missing = format!("the sandbox image {IMAGE} is not there");
    end(&mut containerd.lab(&file, &out)).says(3, &missing);
    let nobody = "unix:///run/no-such-runtime.sock";
    let mut command = containerd.lab(&file, &out);
    end(command.env("CONTAINER_RUNTIME_ENDPOINT", nobody)).says(3, "/run/no-such-runtime.sock");

    containerd.import();
    let child = containerd.lab(&file, &out).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let record = Record::load(&out).unwrap();
    let cell = &record.cells[0];
    let [light, heavy, limited] = cell.tenants.as_slice() else { panic!("{cell:?}") };
    let cpu_s = |t: &TenantRecord| t.runs.iter().map(|run| run.account.cpu_s().unwrap()).sum::<f64>();
    for tenant in &cell.tenants {
        assert_eq!((&*tenant.place, &tenant.ended), ("pod", &Ended::Done), "{:?}", cell.notes);
        assert!(cpu_s(tenant) > 0.0);
        assert_eq!(tenant.limits.cpus.as_ref().map(ToString::to_string).as_deref(), Some("0"));
    }
    // In force and read back; shares or, by the runtime's conversion, a weight.
    let weight = |t: &TenantRecord| t.limits.shares.or(t.limits.weight).unwrap() as f64;
    assert!((weight(heavy) / weight(light) - 3.0).abs() < 0.3, "{:?} {:?}", heavy.limits, light.limits);
    let ratio = cpu_s(heavy) / cpu_s(light);
    assert!((2.0..4.0).contains(&ratio), "{ratio}");
    assert_eq!((limited.limits.quota_pct, limited.runs[0].exit_status), (Some(10.0), Some(0)));
    assert!(limited.total.throttled_count.is_some(), "{:?}", limited.total);
    assert_eq!(containerd.containers(), Vec::<String>::new());
    assert_eq!(made_by("lab", pid), Vec::<PathBuf>::new());

    // Killed in the middle, it leaves pods; the next start removes them.
    let again = dir.path().join("again");
    let mut killed = containerd.lab(&file, &again).spawn().unwrap();
    until("its pods are there", || containerd.containers().len() >= 6);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(!containerd.containers().is_empty());
    let ended = end(&mut containerd.lab(&file, &again)).with(0);
    assert_eq!(containerd.containers(), Vec::<String>::new(), "{ended}");
    assert_eq!(made_by("lab", killed.id()), Vec::<PathBuf>::new());
}
