//! Promised shares fit and are kept.

use evenkeel_base::PromiseState;
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
    match g.state {
        PromiseState::Kept | PromiseState::Waiting => rule.pass(subject, evidence),
        PromiseState::AtRisk => rule
            .fail(
                subject,
                evidence,
                "a little more load, or what an estimate does not show, breaks the promise",
                "# promise less, or give it more room: fewer promises on its CPUs, a wider cpuset",
            )
            .severity(Severity::Info),
        PromiseState::Broken if !g.offers.is_empty() => rule.fail(
            subject,
            evidence,
            "waiting costs it the rate that is promised, though it gets its share whenever it wants the CPU",
            format!(
                "# evenkeel cannot give more by weights; what raises the rate:\n# {}",
                g.offers.join("\n# ")
            ),
        ),
        PromiseState::Broken => rule.fail(
            subject,
            evidence,
            "others took what was promised to it",
            "# keeps promises while it runs:\nevenkeel run --config FILE --guarantees-only",
        ),
        PromiseState::Refused => rule.fail(
            subject,
            evidence,
            "nothing is done for it",
            "# promise less, here or in those stated before it, give it a higher priority, or let its tasks use more CPUs or a higher quota",
        ),
        PromiseState::Unknown => rule.unknown(subject, evidence),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::PromiseState;
    use evenkeel_base::run::GuaranteeStatus;

    use crate::testing::World;
    use crate::{Severity, Status};

    #[test]
    fn each_state_has_its_finding() {
        let mut world = World::new(2);
        assert_eq!(world.only("guarantee").status, Status::Pass);
        for (state, status, severity) in [
            (PromiseState::Kept, Status::Pass, Severity::Error),
            (PromiseState::Waiting, Status::Pass, Severity::Error),
            (PromiseState::AtRisk, Status::Fail, Severity::Info),
            (PromiseState::Broken, Status::Fail, Severity::Error),
            (PromiseState::Refused, Status::Fail, Severity::Error),
            (PromiseState::Unknown, Status::Unknown, Severity::Error),
        ] {
            world.expectations.guarantees = vec![GuaranteeStatus {
                name: "pid:7".into(),
                promise: "40%".into(),
                state,
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
            state: PromiseState::Broken,
            mean: "rate".into(),
            offers: vec!["tiers: idle".into()],
            ..GuaranteeStatus::default()
        }];
        let finding = world.only("guarantee");
        assert!(finding.fix.as_deref().is_some_and(|fix| fix.contains("# tiers: idle")), "{finding:?}");
    }
}
