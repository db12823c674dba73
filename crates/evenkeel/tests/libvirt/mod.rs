//! A libvirt of the test's own: Debian's libvirtd with its files in mounts of its own and its socket in a temporary directory, and
//! emulated machines. A machine ends with its guard, all of it with the test program, however that ends. Needs root and Debian's
//! libvirt-daemon, libvirt-clients and qemu-system-x86 (or -arm).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;

use evenkeel_linux::testing::awaited;
use tempfile::TempDir;

use crate::scene;

/// Holds libvirtd in mounts and a network of its own until the test lets go of its standard input, then ends the machines.
const KEEPER: &str = r#"
for at in /run /var/lib /var/log /var/cache /etc/libvirt; do mount -t tmpfs none "$at" || exit; done
mkdir /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt
cp "$DIR/qemu.conf" /etc/libvirt/
# The account that Debian runs machines under, which comes with another package.
for file in passwd group; do
    grep -q '^libvirt-qemu:' "/etc/$file" && continue
    cp "/etc/$file" "$DIR/$file"
    if [ $file = passwd ]; then rest=64055::/:/bin/false; else rest=; fi
    echo "libvirt-qemu:x:64055:$rest" >>"$DIR/$file"
    mount --bind "$DIR/$file" "/etc/$file"
done
# No KVM, even where there is a device: with one that is of no use libvirtd would try the emulator out for each command.
if [ -e /dev/kvm ]; then
    : >"$DIR/kvm"
    chmod 0 "$DIR/kvm"
    mount --bind "$DIR/kvm" /dev/kvm
fi
tops() { find /sys/fs/cgroup -maxdepth 2 -type d -name machine; }
machines() { for file in /run/libvirt/qemu/*.pid; do [ ! -e "$file" ] || echo "$(cat "$file")"; done; }
had=$(tops)
libvirtd --config "$DIR/libvirtd.conf" --pid-file /run/libvirtd.pid &
daemon=$!
cat >/dev/null
for pid in $(machines); do kill -KILL "$pid"; done
# libvirtd removes what it made for them.
for _ in $(seq 100); do [ -n "$(machines)" ] || break; sleep 0.1; done
kill -TERM "$daemon"
for _ in $(seq 100); do kill -0 "$daemon" 2>/dev/null || break; sleep 0.1; done
kill -KILL "$daemon" 2>/dev/null
wait
for at in $(tops); do
    find "$at" -depth -type d -path "*$TAG*" -exec rmdir {} +
    case "$had" in *"$at"*) ;; *) rmdir "$at" ;; esac
done
rm -rf "$DIR"
"#;

/// Clients need no password; each message goes to where the test finds it.
const DAEMON: &str = "auth_unix_ro = \"none\"\nauth_unix_rw = \"none\"\n";
/// Machines in the cgroups that share CPUs, and in no others.
const QEMU: &str = "security_driver = \"none\"\nnamespaces = []\n\
    stdio_handler = \"file\"\nremember_owner = 0\ncgroup_controllers = [ \"cpu\", \"cpuacct\", \"cpuset\" ]\n";

pub struct Libvirt {
    keeper: Child,
    dir: TempDir,
}

impl Libvirt {
    /// The one of this program: its start takes longer than most tests, for it tries the emulator out.
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<Libvirt> = LazyLock::new(Libvirt::start);
        &SHARED
    }

    fn start() -> Self {
        // A short path: a socket's may have 107 bytes. Passed through by the machines' account.
        let dir = tempfile::Builder::new().prefix("ek-libvirt-").tempdir_in("/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let sockets = format!("unix_sock_dir = \"{}\"\n", dir.path().display());
        fs::write(dir.path().join("libvirtd.conf"), format!("{DAEMON}{sockets}")).unwrap();
        fs::write(dir.path().join("qemu.conf"), QEMU).unwrap();
        scene::spinning_firmware(&dir.path().join("firmware"));
        let log = fs::File::create(dir.path().join("said")).unwrap();
        let keeper = Command::new("unshare")
            .args(["--mount", "--net", "--propagation", "private", "sh", "-c", KEEPER])
            .env("DIR", dir.path())
            .env("TAG", tag())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("unshare is needed (Debian: util-linux)");
        let mut libvirt = Self { keeper, dir };
        awaited(240, || {
            let ended = libvirt.keeper.try_wait().unwrap();
            let words = || format!("libvirtd does not answer (Debian: libvirt-daemon): {}", libvirt.words());
            assert!(ended.is_none(), "{}", words());
            libvirt.ask(&["version"]).status.success().then_some(()).ok_or_else(words)
        });
        libvirt
    }

    /// What libvirtd said.
    pub fn words(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.path().join("said")).unwrap_or_default()).into_owned()
    }

    /// Where `virsh` finds it, and evenkeel by the same variable.
    pub fn uri(&self) -> String {
        format!("qemu+unix:///system?socket={}/libvirt-sock", self.dir.path().display())
    }

    fn ask(&self, args: &[&str]) -> Output {
        let uri = self.uri();
        let virsh = ["60", "virsh", "--connect", &uri];
        let output = Command::new("timeout").args(virsh).args(args).stdin(Stdio::null()).output().unwrap();
        assert_ne!(output.status.code(), Some(127), "virsh is needed (Debian: libvirt-clients)");
        output
    }

    /// What an administrator does.
    #[track_caller]
    pub fn virsh(&self, args: &[&str]) -> String {
        let output = self.ask(args);
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "virsh {args:?}: {words}: {}", self.words());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Defines and starts a machine of two vCPUs, the first of which computes without an end, and an I/O thread. Its vCPUs may use
    /// the CPUs given, or all.
    #[track_caller]
    pub fn machine(&self, name: &str, cpus: Option<&str>) -> Machine<'_> {
        let arm = cfg!(target_arch = "aarch64");
        let (arch, board, cpu) = if arm {
            ("aarch64", "virt", "<cpu mode='custom'><model>cortex-a57</model></cpu>")
        } else {
            ("x86_64", "pc", "")
        };
        let name = format!("{name}_{}", tag());
        let cpus = cpus.map(|cpus| format!(" cpuset='{cpus}'")).unwrap_or_default();
        let definition = format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory><vcpu{cpus}>2</vcpu>\
             <iothreads>1</iothreads>{cpu}<os><type arch='{arch}' machine='{board}'>hvm</type>\
             <loader readonly='yes' type='rom'>{}</loader></os><devices><controller type='usb' model='none'/>\
             <memballoon model='none'/></devices></domain>",
            self.dir.path().join("firmware").display()
        );
        let path = self.dir.path().join(format!("{name}.xml"));
        fs::write(&path, definition).unwrap();
        self.virsh(&["define", path.to_str().unwrap()]);
        self.virsh(&["start", &name]);
        Machine { libvirt: self, name }
    }
}

/// What the names of this program's machines end with.
fn tag() -> String {
    format!("ek{}", std::process::id())
}

/// A machine that libvirt runs.
pub struct Machine<'a> {
    libvirt: &'a Libvirt,
    pub name: String,
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        for command in ["destroy", "undefine"] {
            self.libvirt.ask(&[command, &self.name]);
        }
    }
}

impl Machine<'_> {
    pub fn scope(&self) -> String {
        format!("vm:{}", self.name)
    }

    /// What libvirt says of its share, a line a setting.
    #[track_caller]
    pub fn schedinfo(&self) -> String {
        self.libvirt.virsh(&["schedinfo", &self.name])
    }

    #[track_caller]
    pub fn shares(&self) -> u64 {
        let all = self.schedinfo();
        let shares = all.lines().find_map(|line| line.strip_prefix("cpu_shares")?.split(':').nth(1));
        shares.unwrap_or_else(|| panic!("{all}")).trim().parse().unwrap()
    }

    pub fn set_shares(&self, shares: u64) {
        self.libvirt.virsh(&["schedinfo", &self.name, "--live", &format!("cpu_shares={shares}")]);
    }

    /// The CPUs of a vCPU, or of the I/O thread, as libvirt says.
    #[track_caller]
    pub fn pinned(&self, thread: Thread) -> String {
        let (command, number) = match thread {
            Thread::Vcpu => ("vcpupin", "0"),
            Thread::Io => ("iothreadinfo", "1"),
        };
        let table = self.libvirt.virsh(&[command, &self.name]);
        let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row.first() == Some(&number)).unwrap_or_else(|| panic!("{table}"));
        row[1].to_owned()
    }

    pub fn pin(&self, thread: Thread, cpus: &str) {
        let (command, number) = match thread {
            Thread::Vcpu => ("vcpupin", "0"),
            Thread::Io => ("iothreadpin", "1"),
        };
        self.libvirt.virsh(&[command, &self.name, number, cpus, "--live"]);
    }

    /// The emulator's process.
    pub fn pid(&self) -> u32 {
        let guest = format!("guest={},", self.name);
        let is_it = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(b"/")
                && String::from_utf8_lossy(&line).split('\0').any(|arg| arg.starts_with(&guest))
        };
        let mut pids = evenkeel_linux::process::all().into_iter();
        pids.find(is_it).unwrap_or_else(|| panic!("{} does not run: {}", self.name, self.libvirt.words()))
    }

    /// The thread's number.
    pub fn tid(&self, thread: Thread) -> u32 {
        let dir = format!("/proc/{}/task", self.pid());
        let entries = fs::read_dir(dir).unwrap().flatten();
        let mut named = entries.filter(|entry| {
            let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            comm.starts_with(match thread {
                Thread::Vcpu => "CPU 0/",
                Thread::Io => "IO iothread1",
            })
        });
        named.next().unwrap().file_name().to_str().unwrap().parse().unwrap()
    }

    /// Its cgroup, as the cpu controller's hierarchy has it.
    pub fn group(&self) -> String {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", self.pid())).unwrap();
        let memberships = evenkeel_linux::cgroup::parse(&text).unwrap();
        let path = memberships.v1("cpu").or(memberships.v2()).unwrap();
        path.strip_suffix("/emulator").unwrap_or_else(|| panic!("{text}")).to_owned()
    }

    /// Every file of its cgroups and those below that says how CPUs are shared.
    pub fn files(&self) -> BTreeMap<PathBuf, String> {
        const NAMES: [&str; 7] = [
            "cpu.shares",
            "cpu.weight",
            "cpu.max",
            "cpu.cfs_quota_us",
            "cpu.cfs_period_us",
            "cpuset.cpus.effective",
            "cpuset.effective_cpus",
        ];
        let group = self.group();
        let mut files = BTreeMap::new();
        let hierarchies = fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
        for hierarchy in hierarchies.chain(["/sys/fs/cgroup".into()]) {
            let own = hierarchy.join(group.trim_start_matches('/'));
            let below = fs::read_dir(&own).into_iter().flatten().flatten().map(|entry| entry.path());
            for dir in below.filter(|path| path.is_dir()).chain([own]) {
                let read = |name| Some((dir.join(name), fs::read_to_string(dir.join(name)).ok()?));
                files.extend(NAMES.into_iter().filter_map(read));
            }
        }
        files
    }

    /// The weight in its cgroup's file.
    pub fn weight(&self) -> u64 {
        let group = self.group();
        let own = |path: &&PathBuf| {
            path.parent().is_some_and(|dir| dir.ends_with(Path::new(group.trim_start_matches('/'))))
        };
        let files = self.files();
        let weight = files
            .iter()
            .find(|(path, _)| own(path) && (path.ends_with("cpu.shares") || path.ends_with("cpu.weight")));
        weight.unwrap().1.trim().parse().unwrap()
    }
}

/// A thread that libvirt pins.
#[derive(Debug, Clone, Copy)]
pub enum Thread {
    /// The first vCPU's.
    Vcpu,
    /// The I/O thread.
    Io,
}
