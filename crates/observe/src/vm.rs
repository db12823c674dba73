//! Virtual machines: qemu processes, by command line and owner, and their vCPU threads, by name.
//!
//! Anybody may call a process `qemu-system-x86_64 -name guest=db`, and what the host's owner promises to `vm:db` must not
//! go to whoever does. A process counts as a machine where root or the accounts that run machines own it outside of
//! containers, where it holds `/dev/kvm` open and not everybody may, or where it is in a cgroup of machines at the top of
//! the hierarchy, where only root makes any.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use evenkeel_linux::Root;

/// Accounts that machines run under: Debian's, Fedora's and plain qemu's.
const ACCOUNTS: [&str; 3] = ["libvirt-qemu", "qemu", "kvm"];
/// Open files looked at in search of `/dev/kvm`.
const MOST_FILES: usize = 4096;

/// Where an emulator was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found<'a> {
    /// In a container's cgroup, where the tenant may be root.
    pub in_container: bool,
    /// Its cgroup, where that is one of a machine.
    pub machine_path: Option<&'a str>,
}

/// Whether a process that looks like an emulator may be believed.
pub(crate) fn is_trusted(root: &Root, pid: u32, found: Found<'_>) -> bool {
    let by_root = |path: &str| path.starts_with("/machine.slice/") || path.starts_with("/machine/");
    if found.machine_path.is_some_and(by_root) {
        return true;
    }
    let status = root.read(format!("proc/{pid}/task/{pid}/status")).unwrap_or_default();
    let trusted = match uids(&status) {
        Some(uids) => {
            !found.in_container && uids.iter().all(|uid| *uid == 0 || is_machine_account(root, *uid))
        }
        // A captured tree does not say, and nothing there is acted on.
        None => !root.is_live(),
    };
    trusted || (root.is_live() && holds_kvm(root, pid))
}

/// Real, effective, saved and file system user.
pub(crate) fn uids(status: &str) -> Option<Vec<u32>> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let uids: Vec<u32> = line.split_whitespace().map_while(|uid| uid.parse().ok()).collect();
    (uids.len() == 4).then_some(uids)
}

fn is_machine_account(root: &Root, uid: u32) -> bool {
    let passwd = root.read("etc/passwd").unwrap_or_default();
    passwd.lines().any(|line| {
        let mut fields = line.split(':');
        let name = fields.next().unwrap_or_default();
        ACCOUNTS.contains(&name) && fields.nth(1).and_then(|text| text.parse().ok()) == Some(uid)
    })
}

/// Whether it has `/dev/kvm` open, which the host's owner lets some users do, but not everybody.
fn holds_kvm(root: &Root, pid: u32) -> bool {
    let anybody = |path: &std::path::Path| {
        fs::metadata(path).map_or(true, |facts| facts.permissions().mode() & 0o006 != 0)
    };
    if anybody(&root.path("dev/kvm")) {
        return false;
    }
    let Ok(files) = fs::read_dir(root.path(format!("proc/{pid}/fd"))) else { return false };
    let is_kvm = |file: fs::DirEntry| fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == "/dev/kvm");
    files.flatten().take(MOST_FILES).any(is_kvm)
}

/// Whether a task's name may be an emulator's main thread.
pub(crate) fn may_be_emulator(comm: &str) -> bool {
    comm.starts_with("qemu") || comm == "kvm" || comm.starts_with("cloud-hyperviso") || comm == "firecracker"
}

/// The guest's name from a qemu command line: libvirt writes `-name guest=NAME,debug-threads=on`, people
/// `-name NAME`; `None` when this is no qemu or the guest has no name.
pub(crate) fn guest_name(args: &[String]) -> Option<String> {
    let at = args.iter().position(|arg| arg == "-name" || arg == "--name")?;
    let value = args.get(at + 1)?;
    let named = value.split(',').find_map(|part| part.strip_prefix("guest="));
    let first = value.split(',').next().filter(|part| !part.contains('='));
    named.or(first).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Whether the command is a machine emulator.
pub(crate) fn is_emulator(args: &[String]) -> bool {
    let program = args.first().map_or("", |arg| arg.rsplit('/').next().unwrap_or(arg));
    program.starts_with("qemu-system-")
        || matches!(program, "qemu-kvm" | "kvm" | "firecracker" | "cloud-hypervisor")
}

/// The number in a vCPU thread's name: `CPU 3/KVM`, `CPU 0/TCG` (qemu with `debug-threads=on`), `fc_vcpu 1`, `vcpu1`.
pub(crate) fn vcpu_number(comm: &str) -> Option<u32> {
    let rest = comm.strip_prefix("CPU ").map(|rest| rest.split('/').next().unwrap_or(rest));
    rest.or_else(|| comm.strip_prefix("fc_vcpu ")).or_else(|| comm.strip_prefix("vcpu"))?.parse().ok()
}

/// The emulator whose packets a kernel thread moves: `vhost-PID`. Since Linux 6.4 these are threads of the emulator itself.
pub(crate) fn vhost_owner(comm: &str) -> Option<u32> {
    comm.strip_prefix("vhost-")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use evenkeel_linux::testing::lay;

    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn guests_are_named_as_libvirt_and_people_do() {
        let libvirt = args("/usr/bin/qemu-system-x86_64 -name guest=web-1,debug-threads=on -S");
        assert!(is_emulator(&libvirt));
        assert_eq!(guest_name(&libvirt).as_deref(), Some("web-1"));
        assert_eq!(guest_name(&args("qemu-system-aarch64 -name db,process=x")).as_deref(), Some("db"));
        assert_eq!(guest_name(&args("qemu-system-x86_64 -m 1G")), None);
        assert_eq!(guest_name(&args("qemu-kvm -name")), None);
        assert!(!is_emulator(&args("vim qemu-system-x86_64")) && !is_emulator(&[]));
    }

    #[test]
    fn an_emulator_is_believed_by_its_owner_or_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let is = |uid: u32, in_container, machine_path| {
            let status = format!("Name:\tqemu\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
            lay(dir.path(), &[("proc/7/task/7/status", &status)]);
            is_trusted(&root, 7, Found { in_container, machine_path })
        };
        let passwd =
            "root:x:0:0::/:/bin/sh\nlibvirt-qemu:x:64055:109::/:/bin/false\nqemux:x:1000:1000::/:/bin/sh\n";
        lay(dir.path(), &[("etc/passwd", passwd)]);
        assert!(is(0, false, None) && is(64_055, false, None));
        assert!(!is(1000, false, None), "anybody");
        assert!(!is(0, true, None), "root in a container is a tenant");
        assert!(is(1000, false, Some("/machine.slice/machine-qemu\\x2d1\\x2ddb.scope/libvirt/emulator")));
        let own = "/user.slice/user-1000.slice/user@1000.service/machine-qemu\\x2d1\\x2ddb.scope";
        assert!(!is(1000, false, Some(own)), "a cgroup that a user may make");
        // Set-user-ID programs are not believed by half.
        assert_eq!(uids("Uid:\t1000\t0\t0\t0\n"), Some(vec![1000, 0, 0, 0]));
    }

    #[test]
    fn who_holds_the_device_is_believed_where_not_everybody_may() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let files = dir.path().join("proc/7/fd");
        fs::create_dir_all(&files).unwrap();
        assert!(!holds_kvm(&root, 7), "a host without the device");
        lay(dir.path(), &[("dev/kvm", "")]);
        let allow =
            |mode| fs::set_permissions(dir.path().join("dev/kvm"), fs::Permissions::from_mode(mode)).unwrap();
        allow(0o660);
        std::os::unix::fs::symlink("/dev/null", files.join("0")).unwrap();
        assert!(!holds_kvm(&root, 7) && !holds_kvm(&root, 8));
        std::os::unix::fs::symlink("/dev/kvm", files.join("9")).unwrap();
        assert!(holds_kvm(&root, 7));
        // Where everybody may open it, holding it says nothing.
        allow(0o666);
        assert!(!holds_kvm(&root, 7));
    }

    #[test]
    fn vcpus_by_thread_name() {
        assert_eq!((vcpu_number("CPU 3/KVM"), vcpu_number("CPU 0/TCG")), (Some(3), Some(0)));
        assert_eq!(
            (vcpu_number("fc_vcpu 1"), vcpu_number("CPU x"), vcpu_number("worker")),
            (Some(1), None, None)
        );
        assert_eq!(
            (vhost_owner("vhost-812"), vhost_owner("vhost-net"), vhost_owner("kvm")),
            (Some(812), None, None)
        );
    }
}
