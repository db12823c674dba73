//! One virtual machine: qemu, its console, its end.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_base::CpuSet;
use evenkeel_linux::children::Children;
use serde::{Deserialize, Serialize};

use super::VmError;
use super::guest::{FAILED, READY};
use super::image::Image;
use crate::launch::{Launch, start};
use crate::net::NetError;
use crate::net::namespace::Namespace;
use crate::private::PrivateDir;

/// Lines of the console shown when a machine does not come up.
const LAST_LINES: usize = 20;

/// What runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// The processor itself, by Linux's KVM.
    Kvm,
    /// Software emulation by qemu, a thread a vCPU.
    Tcg,
}

impl Accel {
    /// What it is called in results: emulation is named as what it is.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "software emulation (qemu TCG): speeds say nothing about real guests",
        }
    }

    fn argument(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=multi",
        }
    }
}

/// What a machine is to be.
#[derive(Debug)]
pub struct Spec<'a> {
    /// Name, as `ps` shows it.
    pub name: String,
    pub vcpus: u32,
    pub memory_mib: u32,
    /// What runs its instructions.
    pub accel: Accel,
    /// Its network card, a tap device, and the card's address.
    pub tap: Option<(OwnedFd, Ipv4Addr)>,
    /// Arguments of `load` inside.
    pub load: Vec<String>,
    /// Host CPUs its threads may use.
    pub cpus: Option<&'a CpuSet>,
}

/// A running machine; ended on drop.
#[derive(Debug)]
pub struct Machine {
    name: String,
    process: Children,
    /// Console and qemu's messages; removed on drop.
    files: [PathBuf; 2],
    _dir: PrivateDir,
}

/// A thread of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmThread {
    pub tid: u32,
    /// Name as qemu gives it: `CPU 0/TCG`, `IO mon_iothread`, the emulator's own.
    pub name: String,
    pub role: Role,
}

/// What a thread of a machine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Runs the guest's instructions.
    Vcpu,
    /// An I/O thread, a worker, vhost.
    Io,
    /// The emulator's main loop and the rest.
    Emulator,
}

/// The role of a thread, by the name qemu gives it with `debug-threads=on`.
pub fn role_of(name: &str) -> Role {
    if name.starts_with("CPU ") {
        Role::Vcpu
    } else if name.starts_with("IO ") || name.starts_with("worker") || name.starts_with("vhost-") {
        Role::Io
    } else {
        Role::Emulator
    }
}

/// Makes a tap device in a namespace. It goes with its descriptor.
pub fn tap(namespace: &Namespace, name: &str) -> Result<OwnedFd, NetError> {
    let made = namespace.run(|| {
        let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
        // SAFETY: a struct of plain numbers may be zero.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: an open descriptor of the tun driver and the request this code takes.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from(file))
    });
    made.map_err(|error| NetError::system(format!("making tap device {name} (/dev/net/tun)"), error))
}

/// The emulator's program for this architecture.
pub fn emulator() -> &'static str {
    if cfg!(target_arch = "aarch64") { "qemu-system-aarch64" } else { "qemu-system-x86_64" }
}

/// Where the emulator's program is.
pub fn find_emulator() -> Result<PathBuf, VmError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(emulator())).find(|path| path.is_file()).ok_or_else(
        || {
            let package = if cfg!(target_arch = "aarch64") { "qemu-system-arm" } else { "qemu-system-x86" };
            VmError::Missing { program: emulator().into(), package }
        },
    )
}

impl Machine {
    /// Starts it; does not wait until it is up.
    pub fn start(image: &Image, spec: Spec<'_>) -> Result<Self, VmError> {
        let program = find_emulator()?;
        let dir = PrivateDir::temporary().map_err(|e| VmError::system("making a directory", e))?;
        let files = ["console", "qemu"].map(|name| dir.path().join(name));
        let qemu = File::create(&files[1]).map_err(|e| VmError::system(files[1].display().to_string(), e))?;
        let arguments = arguments(image, &spec, &files[0]);
        let launch = Launch {
            messages: Some(qemu),
            cpus: spec.cpus.cloned(),
            // The tap device lives on in qemu; nothing here keeps it.
            inherits: spec.tap.map(|(fd, _)| Arc::new(fd)),
            ..Launch::new(&program, arguments)
        };
        let process = start(vec![launch])?;
        Ok(Self { name: spec.name, process, files, _dir: dir })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// qemu's process.
    pub fn pid(&self) -> u32 {
        // There is one, always; the kernel gives no process this number.
        self.process.pid(0).unwrap_or(u32::MAX)
    }

    /// Waits until the load inside was started.
    ///
    /// # Errors
    /// The guest ended, said why it cannot, or nothing came within `limit`: with the console's last lines.
    pub fn wait_up(&mut self, limit: Duration) -> Result<(), VmError> {
        self.wait_for(limit, READY).map(drop)
    }

    fn wait_for(&mut self, limit: Duration, mark: &str) -> Result<String, VmError> {
        let until = Instant::now() + limit;
        loop {
            let ended = self.process.ended(0);
            let console = self.console();
            if let Some(rest) = line_after(&console, mark) {
                return Ok(rest);
            }
            if let Some(why) = line_after(&console, FAILED) {
                return Err(self.not_up(why));
            }
            if let Some(status) = ended {
                return Err(self.not_up(format!("qemu ended with {status}")));
            }
            if Instant::now() >= until {
                return Err(self.not_up(format!("nothing heard of it within {} s", limit.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Threads by role.
    pub fn threads(&self) -> Vec<VmThread> {
        let dir = format!("/proc/{}/task", self.pid());
        let tids = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut threads: Vec<VmThread> = tids
            .filter_map(|entry| {
                let tid = entry.file_name().to_str()?.parse().ok()?;
                let name = fs::read_to_string(entry.path().join("comm")).ok()?.trim_end().to_owned();
                let role = role_of(&name);
                Some(VmThread { tid, name, role })
            })
            .collect();
        threads.sort_by_key(|thread| thread.tid);
        threads
    }

    fn console(&self) -> String {
        fs::read(&self.files[0]).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    fn not_up(&self, what: String) -> VmError {
        let qemu = fs::read_to_string(&self.files[1]).unwrap_or_default();
        let console = self.console();
        let lines: Vec<&str> =
            qemu.lines().chain(console.lines()).map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        let console = if last.is_empty() { "(nothing)".to_owned() } else { last };
        VmError::NotUp { name: self.name.clone(), what, console }
    }
}

/// What follows a mark at the start of a whole line.
fn line_after(console: &str, mark: &str) -> Option<String> {
    let whole = console.rfind('\n').map_or("", |end| &console[..end]);
    whole.lines().find_map(|line| line.trim_end().strip_prefix(mark).map(|rest| rest.trim().to_owned()))
}

fn arguments(image: &Image, spec: &Spec<'_>, console: &Path) -> Vec<String> {
    let (machine, serial) =
        if cfg!(target_arch = "aarch64") { ("virt", "ttyAMA0") } else { ("q35", "ttyS0") };
    let mut append = format!("console={serial} quiet loglevel=4 panic=-1 rdinit=/init");
    append += " -- guest";
    if let Some((_, address)) = &spec.tap {
        append += &format!(" --address={address}");
    }
    append += &format!(" --load={}", spec.load.join(","));
    let mut all: Vec<String> = [
        "-name",
        &format!("guest={},debug-threads=on", spec.name),
        "-machine",
        machine,
        "-cpu",
        if spec.accel == Accel::Kvm { "host" } else { "max" },
        "-accel",
        spec.accel.argument(),
        "-smp",
        &spec.vcpus.to_string(),
        "-m",
        &format!("{}M", spec.memory_mib),
        "-kernel",
        &image.kernel.display().to_string(),
        "-initrd",
        &image.initramfs.display().to_string(),
        "-append",
        &append,
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-serial",
        &format!("file:{}", console.display()),
    ]
    .iter()
    .map(|argument| (*argument).to_owned())
    .collect();
    if let Some((fd, address)) = &spec.tap {
        all.extend([
            "-netdev".into(),
            format!("tap,id=n0,fd={},vhost=off", fd.as_raw_fd()),
            "-device".into(),
            format!("virtio-net-pci,netdev=n0,mac={},romfile=", super::nic::mac(*address)),
        ]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::guest::EXIT;

    #[test]
    fn marks_count_on_whole_lines_only() {
        assert_eq!(line_after("x\r\n@@exit 0\r\n", EXIT).as_deref(), Some("0"));
        assert_eq!(line_after("@@ready\r\n", READY).as_deref(), Some(""));
        assert_eq!(line_after("@@exit 1", EXIT), None);
        assert_eq!(line_after("", EXIT), None);
    }

    #[test]
    fn threads_are_told_by_their_names() {
        assert_eq!(role_of("CPU 3/KVM"), Role::Vcpu);
        assert_eq!(
            (role_of("IO mon_iothread"), role_of("worker"), role_of("vhost-812")),
            (Role::Io, Role::Io, Role::Io)
        );
        assert_eq!(role_of("qemu-system-x86"), Role::Emulator);
    }
}
