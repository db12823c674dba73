//! How much of a promise fits next to others: asked of the fair-share solver, where those admitted come first.

use evenkeel_base::{CpuSet, Topology};
use evenkeel_model::fair::{Capacity, FairTask, solve};
use evenkeel_policy::guarantee::AdmissionRequest;

/// Weights of those served first: what is missing from a CPU, the admitted, the one that asks.
const FIRST: f64 = 1e12;
const SECOND: f64 = 1e6;

/// For [`evenkeel_policy::guarantee::Admissions::decide`].
pub fn left_for(
    topology: &Topology,
    admitted: &[&AdmissionRequest],
    ask: &AdmissionRequest,
    promisable: &[(u32, f64)],
) -> f64 {
    let task = |pct: f64, cpus: &CpuSet, weight: f64| FairTask {
        group: None,
        weight,
        wanted_cpus: pct / 100.0,
        threads: (pct / 100.0).ceil().max(1.0) as u32,
        cpus: Some(cpus.clone()),
    };
    let mut tasks: Vec<FairTask> = promisable
        .iter()
        .filter(|(_, pct)| *pct < 100.0)
        .map(|(cpu, pct)| task((100.0 - pct).max(0.0), &CpuSet::single(*cpu), FIRST))
        .collect();
    tasks.extend(admitted.iter().map(|a| task(a.pct, &a.cpus, SECOND)));
    tasks.push(task(ask.pct, &ask.cpus, 1.0));
    let shares = solve(&Capacity::time(topology), &[], &tasks);
    // The solver refuses nothing that is made here; without an answer nothing fits.
    let left = shares.ok().and_then(|shares| shares.tasks.last().copied()).unwrap_or(0.0) * 100.0;
    // It fills to within rounding.
    if left >= ask.pct - 1e-3 { ask.pct } else { left }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::guarantee::{Admission, Admissions, admit::Supply};
    use proptest::prelude::*;

    fn ask(pct: f64, cpus: &str) -> AdmissionRequest {
        AdmissionRequest { name: "x".into(), pct, cpus: cpus.parse().unwrap(), priority: 0 }
    }

    fn answers(asks: &[AdmissionRequest], supply: &Supply, cpus: u32) -> Vec<Admission> {
        let topology = Topology::synthetic(1, 1, cpus, 1);
        let named =
            |(n, ask): (usize, &AdmissionRequest)| AdmissionRequest { name: format!("x{n}"), ..ask.clone() };
        let asks: Vec<AdmissionRequest> = asks.iter().enumerate().map(named).collect();
        let left = |admitted: &[&AdmissionRequest], ask: &AdmissionRequest, of: &[(u32, f64)]| {
            left_for(&topology, admitted, ask, of)
        };
        Admissions::default().decide(&asks, supply, &left)
    }

    #[test]
    fn masks_decide_what_fits_where() {
        let supply = Supply { cpus: vec![(0, 100.0), (1, 100.0)], reserved_pct: 0.0 };
        let asks = [ask(60.0, "0"), ask(100.0, "0-1"), ask(41.0, "0"), ask(40.0, "0")];
        let given = answers(&asks, &supply, 2);
        assert_eq!((&given[0], &given[1]), (&Admission::Fits, &Admission::Fits));
        let Admission::Refused { left_pct, available_pct, .. } = given[2] else { panic!("{given:?}") };
        assert!((left_pct - 40.0).abs() < 0.01 && available_pct == 100.0);
        assert_eq!(given[3], Admission::Fits);
    }

    #[test]
    fn stolen_time_cannot_be_promised() {
        let supply = Supply { cpus: vec![(0, 70.0), (1, 100.0)], reserved_pct: 0.0 };
        let given =
            answers(&[ask(71.0, "0"), ask(70.0, "0"), ask(100.0, "0-1"), ask(1.0, "0-1")], &supply, 2);
        assert!(matches!(given[0], Admission::Refused { left_pct, .. } if (left_pct - 70.0).abs() < 0.01));
        assert_eq!(given[1..3], [Admission::Fits, Admission::Fits]);
        assert!(matches!(given[3], Admission::Refused { left_pct, .. } if left_pct < 0.01), "{given:?}");
    }

    #[test]
    fn a_promise_of_several_cpus_fits_where_there_are_as_many() {
        let supply = Supply { cpus: (0..4).map(|cpu| (cpu, 100.0)).collect(), reserved_pct: 0.0 };
        let given = answers(&[ask(250.0, "0-3"), ask(150.0, "0-3"), ask(1.0, "0-3")], &supply, 4);
        assert_eq!(given[..2], [Admission::Fits, Admission::Fits]);
        assert!(matches!(given[2], Admission::Refused { .. }));
    }

    proptest! {
        /// With masks of every kind: no task is left out for the sake of one of lower priority.
        #[test]
        fn no_lower_priority_is_admitted_in_the_place_of_a_higher_one(
            asked in proptest::collection::vec((1.0f64..150.0, -2i32..3, 1u32..8), 1..7),
        ) {
            let topology = Topology::synthetic(1, 1, 3, 1);
            let supply = Supply { cpus: vec![(0, 100.0), (1, 80.0), (2, 100.0)], reserved_pct: 0.0 };
            let mask = |bits: u32| (0..3).filter(|cpu| bits & (1 << cpu) != 0).collect::<CpuSet>();
            let asks: Vec<AdmissionRequest> = asked
                .iter()
                .enumerate()
                .map(|(n, (pct, priority, bits))| {
                    AdmissionRequest { name: format!("x{n}"), pct: *pct, cpus: mask(*bits), priority: *priority }
                })
                .collect();
            let given = answers(&asks, &supply, 3);
            let admitted: Vec<&AdmissionRequest> =
                asks.iter().zip(&given).filter(|(_, a)| **a == Admission::Fits).map(|(a, _)| a).collect();
            for (refused, _) in asks.iter().zip(&given).filter(|(_, a)| **a != Admission::Fits) {
                for lower in admitted.iter().filter(|a| a.priority < refused.priority) {
                    let others: Vec<&AdmissionRequest> = admitted.iter().filter(|a| a.name != lower.name).copied().collect();
                    let left = left_for(&topology, &others, refused, &supply.promisable());
                    prop_assert!(left < refused.pct, "{} stands in the way of {}", lower.name, refused.name);
                }
            }
        }

        #[test]
        fn with_everybody_everywhere_it_is_a_sum(asked in proptest::collection::vec(1.0f64..150.0, 1..8)) {
            let supply = Supply { cpus: vec![(0, 100.0), (1, 100.0), (2, 100.0)], reserved_pct: 0.0 };
            let asks: Vec<AdmissionRequest> = asked.iter().map(|pct| ask(*pct, "0-2")).collect();
            let mut sum = 0.0;
            for (ask, answer) in asks.iter().zip(answers(&asks, &supply, 3)) {
                let fits = sum + ask.pct <= 300.0;
                prop_assert!((sum + ask.pct - 300.0).abs() < 0.01 || (answer == Admission::Fits) == fits, "{answer:?}");
                if answer == Admission::Fits { sum += ask.pct; }
            }
        }
    }
}
