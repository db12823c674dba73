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
    let kept = &input.expectations.kept_by_run;
    let findings =
        input.expectations.guarantees.iter().map(|g| one(rule, g, kept.contains(&g.name))).collect();
    Ok(rule.or_pass(findings, "nothing is promised"))
}

/// More room for a promise.
const ROOM: &str = "# promise less, or give it more room: fewer promises on its CPUs, a wider cpuset";

/// `kept`: a run of evenkeel at work keeps it.
fn one(rule: &Rule, g: &GuaranteeStatus, kept: bool) -> Finding {
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
                ROOM,
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
        PromiseState::Broken if kept => rule.fail(
            subject,
            evidence,
            "evenkeel keeps it on this host, and what it may set is not enough",
            format!("# shows by what it is kept:\nevenkeel status\n{ROOM}"),
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
        // Who keeps it already is not told to begin.
        for (kept, fix) in [(false, "run --config"), (true, "promise less")] {
            world.expectations.guarantees[0].state = PromiseState::Broken;
            world.expectations.kept_by_run = kept.then(|| "pid:7".into()).into_iter().collect();
            let finding = world.only("guarantee");
            assert!(finding.fix.as_deref().is_some_and(|text| text.contains(fix)), "{finding:?}");
            assert_eq!(finding.consequence.as_deref() == Some("others took what was promised to it"), !kept);
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
