//! Which scheduler runs, and which levers it offers.

use evenkeel_base::facts::{Unknown, release_version};

use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "kernel-features",
    severity: Severity::Info,
    about: "the kernel has a scheduler in which a task can have its own slice (Linux 6.12)",
    check,
};

/// EEVDF replaced CFS.
const EEVDF: (u32, u32) = (6, 6);

/// `sched_setattr` sets a fair task's own slice.
const OWN_SLICE: (u32, u32) = (6, 12);

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let release = input.facts.release.get()?;
    let version = release_version(release)
        .ok_or_else(|| Unknown(format!("kernel release {release:?} does not start with a version")))?;
    let scheduler = if version >= EEVDF { "EEVDF" } else { "CFS" };
    let mut findings = Vec::new();
    if let Some(Some(name)) = input.facts.sched_ext.ok() {
        findings.push(rule.fail(
            "sched_ext",
            format!("BPF scheduler {name} is in charge (Linux {release})"),
            "nice, weights and slices mean what that scheduler makes of them; findings about them may not hold",
            "cat /sys/kernel/sched_ext/root/ops /sys/kernel/sched_ext/state   # unload: stop the service that loaded it",
        ));
    }
    if version < OWN_SLICE {
        findings.push(rule.fail(
            "kernel",
            format!("Linux {release}: {scheduler}, no slice of a task's own (that came with 6.12)"),
            "fewer levers: `evenkeel run` has classes, nice, weights and placement only",
            "# boot Linux 6.12 or later; Debian 12: apt install -t bookworm-backports linux-image-amd64 && reboot\n\
             # Ubuntu: apt install linux-generic-hwe-24.04 && reboot",
        ));
    }
    Ok(rule.or_pass(findings, format!("Linux {release}: {scheduler}, tasks may have their own slice")))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Known;

    use crate::Status;
    use crate::testing::World;

    #[test]
    fn slices_by_version() {
        let mut world = World::new(2);
        for (release, status) in [
            ("6.12.9-amd64", Status::Pass),
            ("7.0-rc1", Status::Pass),
            ("6.8.0-45-generic", Status::Fail),
            ("5.15.0", Status::Fail),
            ("strange", Status::Unknown),
        ] {
            world.facts.release = Known::Value(release.to_owned());
            assert_eq!(world.only("kernel-features").status, status, "{release}");
        }
        world.facts.release = World::denied("/proc/sys/kernel/osrelease");
        assert_eq!(world.only("kernel-features").status, Status::Unknown);
    }

    #[test]
    fn a_bpf_scheduler_is_named() {
        let mut world = World::new(2);
        world.facts.sched_ext = Known::Value(Some("lavd".to_owned()));
        assert!(world.only("kernel-features").evidence.contains("lavd"));
    }
}
