//! `/proc/PID/cgroup`: which cgroup of each hierarchy a task is in; and what the names of cgroups tell.

use crate::ParseError;

/// A task's place in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// Controllers of a v1 hierarchy (`cpu`, `cpuacct`, `name=systemd`); none for v2.
    pub controllers: Vec<String>,
    /// Path as the reader's cgroup namespace shows it: `/` at its root, `/../x` outside it.
    pub path: String,
}

/// A task's place in every hierarchy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memberships(pub Vec<Membership>);

impl Memberships {
    /// Path in the v1 hierarchy with this controller.
    pub fn v1(&self, controller: &str) -> Option<&str> {
        self.0.iter().find(|m| m.controllers.iter().any(|c| c == controller)).map(|m| m.path.as_str())
    }

    /// Path in the v2 hierarchy.
    pub fn v2(&self) -> Option<&str> {
        self.0.iter().find(|m| m.controllers.is_empty()).map(|m| m.path.as_str())
    }
}

/// Reads lines `ID:controllers:path`. The path may itself hold colons.
pub fn parse(text: &str) -> Result<Memberships, ParseError> {
    let mut memberships = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let bad = || ParseError::expected("/proc/PID/cgroup", index + 1, "`ID:controllers:/path`", line);
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(bad());
        };
        if id.parse::<u32>().is_err() || !path.starts_with('/') {
            return Err(bad());
        }
        // A removed cgroup's path carries this mark; nothing is left to read there, the place stays the same.
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let controllers = controllers.split(',').filter(|c| !c.is_empty()).map(str::to_owned).collect();
        memberships.push(Membership { controllers, path: path.to_owned() });
    }
    Ok(Memberships(memberships))
}

/// Whether a text is the id of a container: 64 lower-case hexadecimal digits, as all runtimes draw them.
pub fn is_container_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The runtime and the id, or the name where there is no id (LXC, nspawn), of the container whose own group has this name,
/// below a group with the name `parent`. The runtime is `cgroup` where only the form of the id tells.
///
/// Scopes are `PREFIX-ID.scope` with the systemd driver; with cgroupfs the part is the id or `PREFIX-ID`.
pub fn container(part: &str, parent: &str, in_pod: bool) -> Option<(&'static str, String)> {
    const PREFIXES: [(&str, &str); 6] = [
        ("docker-", "docker"),
        ("cri-containerd-", "containerd"),
        ("nerdctl-", "containerd"),
        ("crio-", "cri-o"),
        ("libpod-", "podman"),
        ("cri-dockerd-", "docker"),
    ];
    let name = part.strip_suffix(".scope").unwrap_or(part);
    for (prefix, runtime) in PREFIXES {
        // `crio-conmon-ID` and `libpod-conmon-ID` are the monitors: what follows the prefix is no id.
        if let Some(id) = name.strip_prefix(prefix).filter(|id| is_container_id(id)) {
            return Some((runtime, id.to_owned()));
        }
    }
    if is_container_id(name) {
        let runtime = match parent {
            "docker" => "docker",
            "libpod_parent" => "podman",
            _ if in_pod => "containerd",
            _ => "cgroup",
        };
        return Some((runtime, name.to_owned()));
    }
    // systemd's CRI form with cgroupfs paths: `kubepods-...slice:cri-containerd:ID`.
    if let Some((rest, id)) = name.rsplit_once(':').filter(|(_, id)| is_container_id(id)) {
        return Some((if rest.contains("crio") { "cri-o" } else { "containerd" }, id.to_owned()));
    }
    if let Some(name) = name.strip_prefix("lxc.payload.").filter(|name| !name.is_empty()) {
        return Some(("lxc", name.to_owned()));
    }
    if matches!(parent, "lxc" | "lxc.payload") && !part.is_empty() {
        return Some(("lxc", part.to_owned()));
    }
    if let Some(name) = part.strip_prefix("machine-").and_then(|name| name.strip_suffix(".scope")) {
        return Some(("systemd", unit_name(name)));
    }
    let nspawn = part.strip_prefix("systemd-nspawn@").and_then(|name| name.strip_suffix(".service"))?;
    Some(("systemd", unit_name(nspawn)))
}

/// systemd's `\xNN` in unit names.
pub fn unit_name(text: &str) -> String {
    let mut parts = text.split("\\x");
    let mut bytes = parts.next().unwrap_or("").as_bytes().to_vec();
    for part in parts {
        match part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend(&part.as_bytes()[2..]);
            }
            None => {
                bytes.extend(b"\\x");
                bytes.extend(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_v2_and_named_hierarchies() {
        let text = "9:name=systemd:/a\n1:cpu,cpuacct:/kube:pods/x (deleted)\n0::/user.slice\n";
        let memberships = parse(text).unwrap();
        assert_eq!(memberships.v1("cpuacct"), Some("/kube:pods/x"));
        assert_eq!(memberships.v1("name=systemd"), Some("/a"));
        assert_eq!((memberships.v2(), memberships.v1("cpuset")), (Some("/user.slice"), None));
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, line) in [("x", 1), ("0::/\n1:cpu\n", 2), ("a:cpu:/\n", 1), ("1:cpu:rel\n", 1)] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text:?}");
        }
        assert_eq!(parse("").unwrap(), Memberships::default());
    }

    #[test]
    fn containers_are_told_by_the_names_of_their_groups() {
        let id = "0123456789abcdef".repeat(4);
        let upper = id.to_uppercase();
        let told = |name: &str, parent: &str, in_pod: bool| {
            let told = container(&name.replace("ID", &id).replace("UPPER", &upper), parent, in_pod);
            told.map(|(runtime, found)| (runtime, found.replace(&id, "ID")))
        };
        let known = |runtime, name: &str| Some((runtime, name.to_owned()));
        for (name, parent, in_pod, expected) in [
            ("ID", "docker", false, known("docker", "ID")),
            ("docker-ID.scope", "system.slice", false, known("docker", "ID")),
            ("ID", "elsewhere", false, known("cgroup", "ID")),
            ("ID", "pod7", true, known("containerd", "ID")),
            ("crio-ID", "pod7", true, known("cri-o", "ID")),
            ("kubepods-pod7.slice:cri-containerd:ID", "containerd.service", false, known("containerd", "ID")),
            ("web", "lxc", false, known("lxc", "web")),
            ("machine-deb\\x2d12.scope", "machine.slice", false, known("systemd", "deb-12")),
            ("crio-conmon-ID.scope", "system.slice", false, None),
            ("UPPER", "docker", false, None),
            ("short", "docker", false, None),
        ] {
            assert_eq!(told(name, parent, in_pod), expected, "{parent}/{name}");
        }
    }
}
