//! The frequency governor does not hold CPUs back.

use std::collections::BTreeMap;

use evenkeel_base::CpuSet;
use evenkeel_base::facts::{Governor, Unknown};

use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "governor",
    severity: Severity::Warning,
    about: "the frequency governor is `performance` (or the hardware's own with that preference)",
    check,
};

/// Drivers under which the hardware picks the frequency and `powersave` is the ordinary, dynamic choice.
const SELF_MANAGED: [&str; 3] = ["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"];

fn judge(governor: &Governor) -> Option<(Severity, &'static str)> {
    let own = governor.driver.as_deref().is_some_and(|driver| SELF_MANAGED.contains(&driver));
    match governor.governor.as_str() {
        "performance" => None,
        _ if own && governor.preference.as_deref() == Some("performance") => None,
        _ if own => Some((
            Severity::Info,
            "the hardware follows the load with some delay: short bursts run slower and measurements vary",
        )),
        "schedutil" | "ondemand" | "conservative" => Some((
            Severity::Info,
            "the frequency follows the load with some delay: short bursts run slower and measurements vary",
        )),
        _ => Some((Severity::Warning, "these CPUs stay at or near a low frequency whatever the load")),
    }
}

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let governors = input.facts.governors.get()?;
    if governors.is_empty() {
        return Ok(vec![rule.pass("host", "the kernel controls no CPU's frequency (usual in a guest)")]);
    }
    let mut groups: BTreeMap<(Severity, &str, String), CpuSet> = BTreeMap::new();
    for governor in governors {
        if let Some((severity, consequence)) = judge(governor) {
            let mut evidence = format!("governor {}", governor.governor);
            if let Some(driver) = &governor.driver {
                evidence.push_str(&format!(", driver {driver}"));
            }
            if let Some(preference) = &governor.preference {
                evidence.push_str(&format!(", preference {preference}"));
            }
            groups.entry((severity, consequence, evidence)).or_default().insert(governor.cpu);
        }
    }
    let findings = groups
        .into_iter()
        .rev()
        .map(|((severity, consequence, evidence), cpus)| {
            let files = if cpus.len() == governors.len() { file("*") } else { files(&cpus) };
            rule.fail(
                format!("cpus {cpus}"),
                evidence,
                consequence,
                format!(
                    "for f in {files}; do echo performance > $f; done\n\
                     # lasting: cpupower frequency-set -g performance in a unit, or tuned-adm profile throughput-performance"
                ),
            )
            .severity(severity)
        })
        .collect();
    Ok(rule.or_pass(findings, format!("{} CPUs at performance", governors.len())))
}

fn file(cpu: &str) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor")
}

/// One by one: not every shell expands braces.
fn files(cpus: &CpuSet) -> String {
    cpus.iter().map(|cpu| file(&cpu.to_string())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::World;

    #[test]
    fn slow_governors_fail_by_how_slow_they_are() {
        let mut world = World::new(4);
        assert!(world.only("governor").evidence.contains("usual in a guest"));
        world.governors(&["performance"; 4], None);
        assert_eq!(world.only("governor").status, Status::Pass);
        world.governors(&["performance", "powersave", "powersave", "performance"], Some("acpi-cpufreq"));
        let finding = world.only("governor");
        assert_eq!(
            (finding.status, finding.severity, &*finding.subject),
            (Status::Fail, Severity::Warning, "cpus 1-2")
        );
        assert!(
            finding
                .fix
                .unwrap()
                .starts_with("for f in /sys/devices/system/cpu/cpu1/cpufreq/scaling_governor /sys/")
        );
        world.governors(&["powersave"; 4], Some("intel_pstate"));
        assert_eq!(world.only("governor").severity, Severity::Info);
        // These follow the load, the last one in small steps.
        for follows in ["schedutil", "ondemand", "conservative"] {
            world.governors(&[follows; 4], None);
            assert_eq!(world.only("governor").severity, Severity::Info, "{follows}");
        }
    }

    #[test]
    fn unreadable_governors_are_unknown() {
        let mut world = World::new(4);
        world.facts.governors = World::denied("/sys/devices/system/cpu");
        assert_eq!(world.only("governor").status, Status::Unknown);
    }
}
