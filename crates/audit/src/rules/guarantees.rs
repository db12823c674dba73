//! Promised shares fit and are kept.

use evenkeel_base::facts::Unknown;
use evenkeel_base::run::GuaranteeStatus;

use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "guarantee",
    severity: Severity::Error,
    about: "promised shares ([[guarantee]], labels) fit and are kept",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let findings = input.expectations.guarantees.iter().map(|g| one(rule, g)).collect();
    Ok(rule.or_pass(findings, "nothing is promised"))
}

fn one(rule: &Rule, g: &GuaranteeStatus) -> Finding {
    let subject = format!("guarantee {}", g.name);
    let minutes = match g.broken_min_day {
        Some(minutes) => format!("; broken for {minutes:.1} minutes of the last day"),
        None => String::new(),
    };
    let evidence = format!("{} promised, {}: {}{minutes}", g.promise, g.state, g.why);
    match g.state.as_str() {
        "kept" | "waiting" => rule.pass(subject, evidence),
        "at risk" => rule
            .fail(
                subject,
                evidence,
                "a little more load and the promise is broken",
                "# promise less, or give it more room: fewer promises on its CPUs, a wider cpuset",
            )
            .severity(Severity::Info),
        "broken" if !g.offers.is_empty() => rule.fail(
            subject,
            evidence,
            "waiting costs it the rate that is promised, though it gets its share whenever it wants the CPU",
            format!(
                "# evenkeel cannot give more by weights; what raises the rate:\n# {}",
                g.offers.join("\n# ")
            ),
        ),
        "broken" => rule.fail(
            subject,
            evidence,
            "others took what was promised to it",
            "# keeps promises while it runs:\nevenkeel run --config FILE --guarantees-only",
        ),
        "refused" => rule.fail(
            subject,
            evidence,
            "nothing is done for it",
            "# promise less, here or in those stated before it, give it a higher priority, or let its tasks use more CPUs",
        ),
        _ => rule.unknown(subject, evidence),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::run::GuaranteeStatus;

    use crate::testing::World;
    use crate::{Severity, Status};

    #[test]
    fn each_state_has_its_finding() {
        let mut world = World::new(2);
        assert_eq!(world.only("guarantee").status, Status::Pass);
        for (state, status, severity) in [
            ("kept", Status::Pass, Severity::Error),
            ("waiting", Status::Pass, Severity::Error),
            ("at risk", Status::Fail, Severity::Info),
            ("broken", Status::Fail, Severity::Error),
            ("refused", Status::Fail, Severity::Error),
            ("unknown", Status::Unknown, Severity::Error),
        ] {
            world.expectations.guarantees = vec![GuaranteeStatus {
                name: "pid:7".into(),
                promise: "40%".into(),
                state: state.into(),
                why: "got 31.0 %".into(),
                broken_min_day: Some(2.5),
                ..GuaranteeStatus::default()
            }];
            let finding = world.only("guarantee");
            assert_eq!((finding.status, finding.severity), (status, severity), "{state}");
            assert!(finding.evidence.contains("31.0 %") && finding.evidence.contains("2.5 minutes"));
        }
        // Only its rate is short: nobody took anything, and no weight helps.
        world.expectations.guarantees = vec![GuaranteeStatus {
            state: "broken".into(),
            mean: "rate".into(),
            offers: vec!["tiers: idle".into()],
            ..GuaranteeStatus::default()
        }];
        let finding = world.only("guarantee");
        assert!(finding.fix.as_deref().is_some_and(|fix| fix.contains("# tiers: idle")), "{finding:?}");
    }
}
