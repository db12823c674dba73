//! Cgroups of virtual machines, as libvirt names them.
//!
//! With systemd a machine's group is `/machine.slice/machine-qemu\x2d3\x2dweb.scope`, and its tasks are below `libvirt` there
//! (libvirt 7.1 and later). Without systemd it is `/machine/qemu-3-web.libvirt-qemu`. Each vCPU has a group of its own below
//! (`vcpu0`), each I/O thread (`iothread1`), and the emulator's other threads have one (`emulator`).

use crate::cgroup::unit_name;

/// A machine, by the name of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// libvirt's number of a machine while it runs, which `virsh` takes in place of a name.
    pub id: u32,
    /// The machine's name without what systemd does not allow in one: of `win_10` it is `win10`.
    pub name: String,
}

/// What of a machine is in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// All of it, in libvirt's own group below systemd's.
    Inner,
    /// The emulator's threads that are none of those below.
    Emulator,
    /// The vCPU of this number.
    Vcpu(u32),
    /// The I/O thread of this number.
    IoThread(u32),
}

/// A group of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// See [`Machine::id`].
    pub id: u32,
    /// The machine's own group.
    pub path: &'a str,
    /// Whether that is a scope of systemd's.
    pub by_systemd: bool,
    /// What of the machine is here.
    pub part: Part,
}

/// The machine whose own group has this name.
pub fn named(group: &str) -> Option<Machine> {
    let numbered = match group.strip_suffix(".scope") {
        Some(scope) => unit_name(scope).strip_prefix("machine-qemu-")?.to_owned(),
        None => group.strip_suffix(".libvirt-qemu")?.strip_prefix("qemu-")?.to_owned(),
    };
    let (number, name) = numbered.split_once('-')?;
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let id = number.parse().ok().filter(|_| is_number && !name.is_empty())?;
    Some(Machine { id, name: name.to_owned() })
}

/// What of which machine a path is. `None` also where a user may have made the group: a number in its name must not lead to
/// somebody else's machine.
pub fn place(path: &str) -> Option<Place<'_>> {
    let mut end = 0;
    for part in path.strip_prefix('/')?.split('/') {
        end += 1 + part.len();
        if let Some(machine) = named(part) {
            let by_systemd = part.ends_with(".scope");
            let (own, below) = path.split_at(end);
            return Some(Place { id: machine.id, path: own, by_systemd, part: below_machine(below)? });
        }
        let is_users = part.starts_with("user");
        if is_users || !(part == "machine" || part.ends_with(".slice") || part.ends_with(".partition")) {
            return None;
        }
    }
    None
}

fn below_machine(path: &str) -> Option<Part> {
    let part = match path {
        "" => return Some(Part::Whole),
        "/libvirt" => return Some(Part::Inner),
        path => path.strip_prefix("/libvirt").unwrap_or(path).strip_prefix('/')?,
    };
    let number = |kind: &str| {
        part.strip_prefix(kind).filter(|n| n.bytes().all(|b| b.is_ascii_digit()))?.parse::<u32>().ok()
    };
    if part == "emulator" {
        return Some(Part::Emulator);
    }
    number("vcpu").map(Part::Vcpu).or_else(|| number("iothread").map(Part::IoThread))
}

/// The group whose CPUs bound those of the tasks in a group: its own, but for the groups in which libvirt keeps threads of a
/// machine apart. It narrows the CPUs of these with each pin of a thread, and widens them again.
pub fn bounding_group(path: &str) -> &str {
    match (place(path), path.rsplit_once('/')) {
        (Some(Place { part: Part::Emulator | Part::Vcpu(_) | Part::IoThread(_), .. }), Some((above, _))) => {
            above
        }
        _ => path,
    }
}

/// Whether a machine of this name has a group of that name: libvirt leaves out what systemd does not allow, and cuts what is too
/// long (`virSystemdMakeMachineName`).
pub fn is_name_of(name: &str, group: &str) -> bool {
    /// Names of groups at least this long may have been cut: of 64 characters up to fifteen are `qemu-` and the number.
    const MAY_BE_CUT: usize = 48;
    let plain = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
    let (name, of_group) = (plain(name), plain(group));
    name == of_group || (group.len() >= MAY_BE_CUT && name.starts_with(&of_group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn machines_are_told_by_the_names_of_their_groups() {
        let told = |name: &str| named(name).map(|machine| (machine.id, machine.name));
        assert_eq!(told("machine-qemu\\x2d3\\x2dweb\\x2d1.scope"), Some((3, "web-1".to_owned())));
        assert_eq!(told("qemu-12-db.libvirt-qemu"), Some((12, "db".to_owned())));
        for other in
            ["machine-lxc\\x2d1\\x2dx.scope", "qemu-x-db.libvirt-qemu", "qemu-+1-db.libvirt-qemu", "a.scope"]
        {
            assert_eq!(told(other), None, "{other}");
        }
        assert_eq!(told("qemu-99999999999-db.libvirt-qemu"), None);
    }

    #[test]
    fn each_group_of_a_machine_has_its_part() {
        let scope = "/machine.slice/machine-qemu\\x2d3\\x2dweb.scope";
        let plain = "/machine/qemu-3-web.libvirt-qemu";
        let of = |path: &str| {
            place(path).map(|place| (place.id, place.path.to_owned(), place.by_systemd, place.part))
        };
        for (own, by_systemd, below, part) in [
            (scope, true, "", Part::Whole),
            (scope, true, "/libvirt", Part::Inner),
            (scope, true, "/libvirt/vcpu0", Part::Vcpu(0)),
            (scope, true, "/libvirt/emulator", Part::Emulator),
            (scope, true, "/vcpu11", Part::Vcpu(11)),
            (plain, false, "", Part::Whole),
            (plain, false, "/iothread2", Part::IoThread(2)),
        ] {
            assert_eq!(of(&format!("{own}{below}")), Some((3, own.to_owned(), by_systemd, part)), "{below}");
        }
        assert_eq!(of("/prod.partition/qemu-3-web.libvirt-qemu").map(|found| found.3), Some(Part::Whole));
        for other in ["", "/", "/machine.slice", "machine/qemu-3-web.libvirt-qemu"] {
            assert_eq!(of(other), None, "{other}");
        }
        for below in ["/vcpu", "/vcpu+1", "/vcpu0/x", "/libvirtx", "/guest"] {
            assert_eq!(of(&format!("{plain}{below}")), None, "{below}");
        }
        // Whoever may make these may be anybody.
        for above in
            ["/user.slice/user-1000.slice/user@1000.service", "/system.slice/x.service", "/docker/x", "/a"]
        {
            assert_eq!(of(&format!("{above}/machine-qemu\\x2d3\\x2dweb.scope")), None, "{above}");
        }
    }

    #[test]
    fn a_thread_that_libvirt_pins_is_bounded_by_its_machine() {
        for (path, bounding) in [
            ("/machine/qemu-3-web.libvirt-qemu/vcpu0", "/machine/qemu-3-web.libvirt-qemu"),
            (
                "/machine.slice/machine-qemu\\x2d3\\x2dweb.scope/libvirt/emulator",
                "/machine.slice/machine-qemu\\x2d3\\x2dweb.scope/libvirt",
            ),
            ("/machine/qemu-3-web.libvirt-qemu", "/machine/qemu-3-web.libvirt-qemu"),
            ("/a/vcpu0", "/a/vcpu0"),
            ("/", "/"),
        ] {
            assert_eq!(bounding_group(path), bounding);
        }
    }

    #[test]
    fn a_name_is_that_of_a_group_without_what_systemd_does_not_allow() {
        assert!(is_name_of("win_10", "win10") && is_name_of("web-1", "web-1") && is_name_of("a..b", "a.b"));
        assert!(!is_name_of("db", "web") && !is_name_of("web-10", "web-1"));
        let long = "x".repeat(70);
        assert!(is_name_of(&long, &long[..55]) && !is_name_of(&long, "xxx"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(path in "(/(machine|qemu-[0-9]{1,12}-x.libvirt-qemu|vcpu[0-9]{0,12}|\\PC{0,12})){0,4}|\\PC{0,40}") {
            let place = place(&path);
            prop_assert!(place.is_none_or(|place| path.starts_with(place.path)));
            prop_assert!(path.starts_with(bounding_group(&path)));
            let _ = is_name_of(&path, &path);
        }
    }
}
