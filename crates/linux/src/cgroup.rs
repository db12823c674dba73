//! `/proc/PID/cgroup`: which cgroup of each hierarchy a task is in.

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
///
/// # Errors
/// A line of another form.
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

/// The virtual machine whose own group has this name, as libvirt calls both: `machine-qemu\x2d3\x2dNAME.scope` with systemd,
/// `qemu-3-NAME.libvirt-qemu` without.
pub fn machine(group: &str) -> Option<String> {
    let numbered = match group.strip_suffix(".scope") {
        Some(scope) => unit_name(scope).strip_prefix("machine-qemu-")?.to_owned(),
        None => group.strip_suffix(".libvirt-qemu")?.strip_prefix("qemu-")?.to_owned(),
    };
    let (number, name) = numbered.split_once('-')?;
    let known = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty();
    known.then(|| name.to_owned())
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
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([0-9]:[a-z,]{0,8}:/)?\\PC{0,40}") {
            let _ = parse(&text);
        }
    }
}
