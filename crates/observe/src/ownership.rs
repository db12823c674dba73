//! Whose a cgroup is, by its path alone: the patterns of Docker, containerd, CRI-O, Podman, Kubernetes (both cgroup
//! drivers), LXC, systemd-nspawn, libvirt and systemd units.

use evenkeel_base::is_unit_name;
use evenkeel_linux::{cgroup, machine};
use serde::{Deserialize, Serialize};

/// A container recognised in a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContainerPath {
    /// The runtime's id, or the name where the path holds one (LXC, nspawn).
    pub id: String,
    /// `docker`, `containerd`, `cri-o`, `podman`, `lxc`, `systemd`, or `cgroup` when only the form of the id tells.
    pub runtime: String,
    /// The container's own group: the path down to the part that was recognised.
    pub path: String,
}

/// A pod recognised in a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodPath {
    /// uid, with dashes.
    pub uid: String,
    /// The pod's own group.
    pub path: String,
}

/// Whose a path is; the innermost of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    pub container: Option<ContainerPath>,
    pub pod: Option<PodPath>,
    /// systemd unit (`ssh.service`, `session-3.scope`, `user.slice`).
    pub unit: Option<String>,
    /// Name of a virtual machine as its group has it, see [`evenkeel_linux::machine`].
    pub machine: Option<String>,
}

/// Reads a cgroup path.
///
/// ```
/// use evenkeel_observe::ownership::classify;
/// let id = "4f".repeat(32);
/// let owner = classify(&format!("/system.slice/docker-{id}.scope"));
/// assert_eq!(owner.container.unwrap().id, id);
/// assert_eq!(classify("/system.slice/ssh.service").unit.as_deref(), Some("ssh.service"));
/// ```
pub fn classify(path: &str) -> Owner {
    let mut owner = Owner::default();
    let mut end = 0;
    let mut parent = "";
    for part in path.split('/') {
        end += part.len();
        let upto = || path[..end.min(path.len())].to_owned();
        if let Some(uid) = pod_uid(part) {
            owner.pod = Some(PodPath { uid, path: upto() });
        } else if let Some(machine) = machine::named(part) {
            owner.machine = Some(machine.name);
        } else if let Some((runtime, id)) = cgroup::container(part, parent, owner.pod.is_some()) {
            owner.container = Some(ContainerPath { id, runtime: runtime.to_owned(), path: upto() });
        }
        if is_unit_name(part) {
            owner.unit = Some(part.to_owned());
        }
        parent = part;
        end += 1;
    }
    owner
}

/// The own group of the virtual machine in whose groups a path is.
pub(crate) fn machine_group(path: &str) -> Option<&str> {
    let mut end = 0;
    path.split('/').find_map(|part| {
        end += part.len() + 1;
        machine::named(part).map(|_| &path[..end - 1])
    })
}

/// `podUID` (cgroupfs driver) or `kubepods-...-podUID.slice` with underscores (systemd driver). A static pod's uid is
/// 32 digits without dashes.
fn pod_uid(part: &str) -> Option<String> {
    let name = match part.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1,
        None => part.strip_prefix("pod")?,
    };
    let uid = name.replace('_', "-");
    let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    let dashes = uid.bytes().filter(|b| *b == b'-').count();
    (digits == 32 && digits + dashes == uid.len() && matches!(dashes, 0 | 4)).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "5f3c2a10-9b1e-4c57-8d34-0a1b2c3d4e5f";

    #[test]
    fn containers_by_path() {
        for (path, runtime, own) in [
            ("/docker/ID", "docker", "/docker/ID"),
            ("/system.slice/docker-ID.scope/init.scope", "docker", "/system.slice/docker-ID.scope"),
            ("/kubepods/burstable/podUID/ID", "containerd", "/kubepods/burstable/podUID/ID"),
            ("/kubepods.slice/kubepods-podUNDER.slice/cri-containerd-ID.scope", "containerd", ""),
            (
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUNDER.slice/crio-ID.scope",
                "cri-o",
                "",
            ),
            ("/kubepods/podUID/crio-ID", "cri-o", ""),
            ("/machine.slice/libpod-ID.scope/container", "podman", "/machine.slice/libpod-ID.scope"),
            ("/libpod_parent/libpod-ID", "podman", ""),
            (
                "/system.slice/containerd.service/kubepods-burstable-podUNDER.slice:cri-containerd:ID",
                "containerd",
                "",
            ),
            ("/somewhere/ID", "cgroup", ""),
            (
                "/docker/1111111111111111111111111111111111111111111111111111111111111111/docker/ID",
                "docker",
                "",
            ),
        ] {
            let fill = |text: &str| {
                text.replace("UNDER", &UID.replace('-', "_")).replace("UID", UID).replace("ID", ID)
            };
            let owner = classify(&fill(path));
            let container = owner.container.unwrap();
            assert_eq!((container.id.as_str(), container.runtime.as_str()), (ID, runtime));
            if !own.is_empty() {
                assert_eq!(container.path, fill(own));
            }
            let in_pod = path.contains("/pod") || path.contains("podUNDER.slice/");
            assert_eq!(owner.pod.is_some(), in_pod, "{path}");
            assert!(owner.pod.is_none_or(|pod| pod.uid == UID));
        }
    }

    #[test]
    fn named_containers() {
        for (path, id, runtime) in [
            ("/lxc/web", "web", "lxc"),
            ("/lxc.payload.web/system.slice/x.service", "web", "lxc"),
            ("/machine.slice/machine-deb\\x2d12.scope", "deb-12", "systemd"),
        ] {
            let container = classify(path).container.unwrap();
            assert_eq!((container.id.as_str(), container.runtime.as_str()), (id, runtime));
        }
    }

    #[test]
    fn machines() {
        for (path, name) in [
            ("/machine.slice/machine-qemu\\x2d3\\x2dweb\\x2d1.scope/libvirt/vcpu0", "web-1"),
            ("/machine/qemu-1-db.libvirt-qemu/emulator", "db"),
        ] {
            let owner = classify(path);
            assert_eq!((owner.machine.as_deref(), owner.container), (Some(name), None));
            let own = machine_group(path).unwrap();
            assert!(
                path.starts_with(own)
                    && own.ends_with(if own.contains(".scope") { ".scope" } else { "-qemu" })
            );
        }
    }

    #[test]
    fn not_containers() {
        for path in [
            "/",
            "/user.slice/user-0.slice/session-1.scope",
            "/system.slice/docker.service",
            "/system.slice/crio-conmon-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope",
            "/kubepods/burstable",
            "/podium",
        ] {
            let owner = classify(path);
            assert_eq!((owner.container, owner.pod), (None, None));
        }
    }

    #[test]
    fn the_innermost_unit_is_told() {
        let unit = classify("/user.slice/user-0.slice/session-1.scope").unit;
        assert_eq!(unit.as_deref(), Some("session-1.scope"));
    }
}
