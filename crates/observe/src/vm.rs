//! Virtual machines: qemu processes, by command line, and their vCPU threads, by name.

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
