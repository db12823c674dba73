//! What a watcher may do: no more than it needs.

use std::path::Path;

use anyhow::Context;
use landlock::{ABI, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, path_beneath_rules};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// What is kept, where it was there: to load and read BPF programs (`CAP_BPF`, `CAP_PERFMON`), to read files of others
/// (`CAP_DAC_READ_SEARCH`), and what `/proc` says of their processes (`CAP_SYS_PTRACE`).
const KEPT: [(CapabilitySet, &str); 4] = [
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::PERFMON, "CAP_PERFMON"),
    (CapabilitySet::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
];

/// Gives up every capability but [`KEPT`], for this thread and those that it starts, and whatever a program that it
/// executes could gain. Says what is left.
///
/// # Errors
/// The kernel refuses.
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
///
/// # Errors
/// The kernel refuses.
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
