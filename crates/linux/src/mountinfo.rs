//! `/proc/PID/mountinfo`: where the cgroup hierarchies are mounted.

use crate::{ParseError, ReadError, Root};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Directory inside the file system that is mounted (`/` unless a part is, as in a container).
    pub root: String,
    pub mount_point: String,
    /// File system type: `cgroup`, `cgroup2`, ...
    pub fs_type: String,
    /// Options of the file system: for `cgroup` the controllers.
    pub super_options: Vec<String>,
}

/// Reads the lines: `ID parent major:minor root mount-point options [tags] - type source super-options`.
pub fn parse(text: &str) -> Result<Vec<Mount>, ParseError> {
    let mut mounts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mount = mount(line).ok_or_else(|| {
            ParseError::expected("/proc/self/mountinfo", index + 1, "a mount with a ` - ` separator", line)
        })?;
        mounts.push(mount);
    }
    Ok(mounts)
}

fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let mut right = right.split(' ');
    Some(Mount {
        root: unescape(left.next()?),
        mount_point: unescape(left.next()?),
        fs_type: right.next()?.to_owned(),
        super_options: right.nth(1).unwrap_or("").split(',').map(str::to_owned).collect(),
    })
}

/// Undoes the kernel's octal escapes (`\040` is a space).
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if *first == b'\\' => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    pub mount_point: String,
    /// The part of it that is mounted there.
    pub root: String,
    pub v2: bool,
}

impl Hierarchy {
    /// A group's directory, for a path as in `/proc/PID/cgroup`: below the mount point, without what the mount itself
    /// leaves out. Relative to a [`Root`] when joined by [`Root::path`].
    pub fn dir(&self, path: &str) -> String {
        format!("{}{}", self.mount_point.trim_end_matches('/'), self.below(path).trim_end_matches('/'))
    }

    /// A path as in `/proc/PID/cgroup`, made relative to the mount point (`/` is the mount point itself).
    pub fn below<'a>(&self, path: &'a str) -> &'a str {
        let root = self.root.trim_end_matches('/');
        match path.strip_prefix(root) {
            Some("") => "/",
            Some(rest) if rest.starts_with('/') => rest,
            _ => path,
        }
    }
}

evenkeel_base::named! {
/// How a host lays out its cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Only v1 hierarchies.
    V1 = "v1",
    /// Only the v2 hierarchy.
    V2 = "v2",
    /// v1 hierarchies and the v2 one side by side, wherever the controllers are.
    Hybrid = "hybrid",
    /// No cgroup file system mounted.
    None = "none",
}
}

/// Where the controllers of CPU time are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchies {
    /// The layout as a whole.
    pub layout: Layout,
    /// Hierarchy with the `cpu` controller: weights and quotas act here.
    pub cpu: Option<Hierarchy>,
    pub cpuset: Option<Hierarchy>,
    /// v1 `cpuacct`, often the same mount as `cpu`.
    pub cpuacct: Option<Hierarchy>,
    pub memory: Option<Hierarchy>,
    /// The v2 hierarchy, with or without controllers.
    pub unified: Option<Hierarchy>,
}

impl Hierarchies {
    /// Finds the hierarchies among the mounts. `v2_controllers` is the v2 root's `cgroup.controllers`; when it is not
    /// known, a controller that no v1 hierarchy has is taken to be in v2.
    pub fn find(mounts: &[Mount], v2_controllers: Option<&str>) -> Self {
        let hierarchy = |mount: &Mount, v2| Hierarchy {
            mount_point: mount.mount_point.clone(),
            root: mount.root.clone(),
            v2,
        };
        // The same hierarchy may be mounted more than once; the widest view (shortest root) serves best.
        let best = |wanted: &dyn Fn(&Mount) -> bool, v2| {
            mounts.iter().filter(|m| wanted(m)).min_by_key(|m| m.root.len()).map(|m| hierarchy(m, v2))
        };
        let unified = best(&|m| m.fs_type == "cgroup2", true);
        let any_v1 = mounts
            .iter()
            .any(|m| m.fs_type == "cgroup" && !m.super_options.iter().any(|o| o.starts_with("name=")));
        let v1 =
            |name: &str| best(&|m| m.fs_type == "cgroup" && m.super_options.iter().any(|o| o == name), false);
        let v2 = |name: &str| {
            let there =
                v2_controllers.map_or(!any_v1, |list| list.split_ascii_whitespace().any(|c| c == name));
            unified.clone().filter(|_| there)
        };
        let layout = match (any_v1, unified.is_some()) {
            (true, false) => Layout::V1,
            (false, true) => Layout::V2,
            (true, true) => Layout::Hybrid,
            (false, false) => Layout::None,
        };
        Self {
            layout,
            cpu: v1("cpu").or_else(|| v2("cpu")),
            cpuset: v1("cpuset").or_else(|| v2("cpuset")),
            cpuacct: v1("cpuacct"),
            memory: v1("memory").or_else(|| v2("memory")),
            unified,
        }
    }

    /// Finds the hierarchies of a host.
    pub fn read(root: &Root) -> Result<Self, ReadError> {
        let mounts = root.parse("proc/self/mountinfo", parse)?;
        let controllers = match mounts.iter().find(|m| m.fs_type == "cgroup2") {
            Some(mount) => root.read_optional(format!("{}/cgroup.controllers", mount.mount_point))?,
            None => None,
        };
        Ok(Self::find(&mounts, controllers.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                      34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                      40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";
    const V2: &str = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn hybrid_takes_the_cpu_controller_from_where_it_is() {
        let mounts = parse(&format!("{V1}{V2}")).unwrap();
        let found = Hierarchies::find(&mounts, Some(""));
        assert_eq!(found.layout, Layout::Hybrid);
        assert_eq!(found.cpu.as_ref().unwrap().mount_point, "/sys/fs/cgroup/cpu,cpuacct");
        assert_eq!(found.cpu, found.cpuacct);
        assert!(!found.cpuset.unwrap().v2 && found.unified.unwrap().v2);
        // v1 for memory only, everything else in v2
        let mounts = parse(&format!("1 1 0:1 / /m rw - cgroup c rw,memory\n{V2}")).unwrap();
        let found = Hierarchies::find(&mounts, Some("cpuset cpu io\n"));
        assert!(found.cpu.unwrap().v2 && found.cpuset.unwrap().v2 && found.cpuacct.is_none());
    }

    #[test]
    fn pure_layouts() {
        let found = Hierarchies::find(&parse(V2).unwrap(), None);
        assert!(found.layout == Layout::V2 && found.cpu.unwrap().v2);
        let found = Hierarchies::find(&parse(V1).unwrap(), None);
        assert!(found.layout == Layout::V1 && found.unified.is_none());
        assert_eq!(Hierarchies::find(&[], None).layout, Layout::None);
    }

    #[test]
    fn a_container_sees_a_part_of_the_hierarchy() {
        let mount = &parse("9 1 0:30 /docker/x /sys/fs/cgroup\\040a rw - cgroup cgroup rw,cpu\n").unwrap()[0];
        assert_eq!(mount.mount_point, "/sys/fs/cgroup a");
        let cpu = Hierarchies::find(std::slice::from_ref(mount), None).cpu.unwrap();
        assert_eq!(cpu.dir("/docker/x/y"), "/sys/fs/cgroup a/y");
        assert_eq!(cpu.dir("/docker/x"), "/sys/fs/cgroup a");
        assert_eq!(cpu.dir("/docker/xy"), "/sys/fs/cgroup a/docker/xy");
    }

    #[test]
    fn bad_lines_are_named() {
        assert_eq!(parse(&format!("{V2}nonsense\n")).unwrap_err().line, 2);
    }
}
