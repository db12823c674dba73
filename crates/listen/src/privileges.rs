//! What a watcher may do: no more than it needs.

use std::path::Path;

use anyhow::Context;
use evenkeel_linux::{Root, mountinfo};
use landlock::{ABI, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, path_beneath_rules};
use rustix::process::{Gid, getegid, getgroups};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
};

/// What is kept, where it was there: to load and read BPF programs (`CAP_BPF`, `CAP_PERFMON`), and to read files of others
/// (`CAP_DAC_READ_SEARCH`). Not `CAP_SYS_PTRACE`: with it the memory of every process could be written to, and the files of the host
/// through `/proc/1/root`; what Landlock confines cannot use it for anything.
const KEPT: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::PERFMON, "CAP_PERFMON"),
    (CapabilitySet::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
];

/// To whom a `/proc` shows other users' processes.
#[derive(Debug, PartialEq)]
enum ShownTo {
    Everybody,
    /// Its group, and who may trace them.
    Group(Gid),
    /// Who may trace them.
    Tracers,
}

/// What the options of `/proc` say (`proc_show_options` in the kernel's `fs/proc/root.c`; before Linux 5.8 they were numbers).
fn shown_to(options: &[String]) -> ShownTo {
    let value = |key: &str| options.iter().find_map(|option| option.strip_prefix(key));
    match value("hidepid=") {
        None | Some("0" | "off") => ShownTo::Everybody,
        Some("4" | "ptraceable") => ShownTo::Tracers,
        Some(_) => {
            ShownTo::Group(value("gid=").and_then(|gid| gid.parse().ok()).map_or(Gid::ROOT, Gid::from_raw))
        }
    }
}

/// Joins the group to which `/proc` shows other users' processes, where it hides them (`hidepid`): who may trace sees them,
/// too, but [`write_only_to`] takes that away. Says where they stay hidden.
pub fn join_who_sees_processes() -> Option<String> {
    let mounts = mountinfo::parse(&Root::host().read("proc/self/mountinfo").ok()?).ok()?;
    let proc = mounts.iter().rfind(|mount| mount.mount_point == "/proc" && mount.fs_type == "proc")?;
    let remedy = match shown_to(&proc.super_options) {
        ShownTo::Everybody => return None,
        ShownTo::Tracers => "mounted with hidepid=invisible it would show them to a group".to_owned(),
        ShownTo::Group(group) => {
            let mut groups = getgroups().unwrap_or_default();
            if getegid() == group || groups.contains(&group) {
                return None;
            }
            groups.push(group);
            let Err(error) = set_thread_groups(&groups) else { return None };
            format!(
                "it shows them to the group {group}, which cannot be joined: {error}",
                group = group.as_raw()
            )
        }
    };
    Some(format!("/proc hides other users' processes (hidepid): {remedy}"))
}

/// Gives up every capability but [`KEPT`], for this thread and those that it starts, and whatever a program that it
/// executes could gain. Says what is left.
pub fn drop_all_but_reading() -> anyhow::Result<String> {
    let have = capabilities(None).context("cannot read the capabilities of this process")?;
    let wanted = KEPT.iter().fold(CapabilitySet::empty(), |sum, (one, _)| sum | *one);
    let kept = have.permitted & wanted;
    // While CAP_SETPCAP is there; without it nothing can be gained from the bounding set by one that may not gain.
    if have.effective.contains(CapabilitySet::SETPCAP) {
        for bit in 0..64 {
            let one = CapabilitySet::from_bits_retain(1 << bit);
            // The kernel knows fewer than there are bits.
            if !kept.contains(one) && remove_capability_from_bounding_set(one).is_err() {
                break;
            }
        }
    }
    set_no_new_privs(true).context("cannot give up gaining privileges")?;
    clear_ambient_capability_set().context("cannot give up ambient capabilities")?;
    let left = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, left).context("cannot give up capabilities")?;
    let names: Vec<&str> =
        KEPT.iter().filter(|(one, _)| kept.contains(*one)).map(|(_, name)| *name).collect();
    Ok(if names.is_empty() { "none".to_owned() } else { names.join(", ") })
}

/// From now on this thread and those that it starts can write to files of this directory alone, whoever they are and whatever the
/// files' modes say (Landlock, since Linux 5.13). Says how far the kernel does that.
pub fn write_only_to(state_dir: &Path) -> anyhow::Result<&'static str> {
    // What a kernel does not know of these it does not confine.
    let writing = AccessFs::from_write(ABI::V3);
    let confine = || {
        let rules = Ruleset::default().handle_access(writing)?.create()?;
        // A directory that is not there gets no rule.
        rules.add_rules(path_beneath_rules([state_dir], writing))?.restrict_self()
    };
    let restricted = confine().context("cannot give up writing to files (Landlock)")?;
    Ok(match restricted.ruleset {
        RulesetStatus::FullyEnforced => "files written to: those of the state directory alone",
        RulesetStatus::PartiallyEnforced => {
            "files written to: those of the state directory alone, as far as this kernel's Landlock goes"
        }
        RulesetStatus::NotEnforced => "files written to are not confined: this kernel has no Landlock",
    })
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn who_sees_other_users_processes_is_an_option_of_proc() {
        let of = |text: &str| shown_to(&text.split(',').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(of("rw"), ShownTo::Everybody);
        assert_eq!(of("rw,gid=7,hidepid=off"), ShownTo::Everybody);
        for hidden in ["1", "2", "noaccess", "invisible"] {
            assert_eq!(of(&format!("rw,gid=7,hidepid={hidden}")), ShownTo::Group(Gid::from_raw(7)));
        }
        assert_eq!(
            of("rw,hidepid=invisible"),
            ShownTo::Group(Gid::ROOT),
            "the kernel does not say that it is root's"
        );
        assert_eq!(
            (of("rw,gid=7,hidepid=ptraceable"), of("hidepid=4")),
            (ShownTo::Tracers, ShownTo::Tracers)
        );
    }

    #[test]
    fn nothing_is_written_but_in_the_state_directory() {
        let (state, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let other = elsewhere.path().join("other");
        std::fs::write(&other, "as it was").unwrap();
        // The thread is confined, and what the other tests do is not.
        let confined = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let told = write_only_to(state.path()).unwrap();
                    let inside = std::fs::write(state.path().join("own"), "x");
                    let outside = [
                        std::fs::write(&other, "x"),
                        std::fs::write(elsewhere.path().join("new"), "x"),
                        std::fs::remove_file(&other),
                    ];
                    (told, inside, outside, std::fs::read_to_string(&other))
                })
                .join()
                .unwrap()
        });
        let (told, inside, outside, read) = confined;
        inside.unwrap();
        if told.contains("not confined") {
            panic!("this kernel has no Landlock, so nothing is shown: {told}");
        }
        assert!(
            outside
                .iter()
                .all(|done| matches!(done, Err(error) if error.kind() == ErrorKind::PermissionDenied))
        );
        assert_eq!(read.unwrap(), "as it was");
    }
}
