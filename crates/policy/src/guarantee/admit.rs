//! Does it fit? Promises are admitted by their priority, equal ones in the order in which they are stated; one that does
//! not fit next to those before it is refused, with what is left, and nothing is done for it.
//!
//! One that was refused is admitted again when it has fitted for a while ([`Admissions`]): what CPUs can give goes up and
//! down with what is stolen, and each change costs writes for every promise.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use evenkeel_base::CpuSet;

/// One promise that asks to be admitted.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionRequest {
    /// What it is called in messages.
    pub name: String,
    /// Promised, percent of one CPU.
    pub pct: f64,
    /// CPUs its tasks may use.
    pub cpus: CpuSet,
    /// Higher ones come first.
    pub priority: i32,
}

/// What CPUs can give.
#[derive(Debug, Clone, PartialEq)]
pub struct Supply {
    /// Percent of each online CPU: 100 less what is stolen from it.
    pub cpus: Vec<(u32, f64)>,
    /// Kept back from promises, percent of one CPU, spread evenly.
    pub reserved_pct: f64,
}

impl Supply {
    /// What can be promised of each CPU, percent.
    pub fn promisable(&self) -> Vec<(u32, f64)> {
        let total: f64 = self.cpus.iter().map(|(_, pct)| pct.max(0.0)).sum();
        let part = if total > 0.0 { (1.0 - self.reserved_pct / total).clamp(0.0, 1.0) } else { 0.0 };
        self.cpus.iter().map(|(cpu, pct)| (*cpu, pct.max(0.0) * part)).collect()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Admission {
    Fits,
    Refused {
        /// Sum of what was promised before on these CPUs and what this one asks, percent of one CPU.
        asked_pct: f64,
        /// What these CPUs can give, percent of one CPU.
        available_pct: f64,
        /// What is left for this one, percent of one CPU.
        left_pct: f64,
        /// Those of higher priority without which it would fit; none: it would not in any case.
        gives_way_to: Vec<String>,
    },
    /// It would fit, and is admitted when it has done so for as many more looks.
    Returns {
        /// So many.
        looks: u32,
    },
}

/// Rounding that is forgiven, percent of one CPU.
const EPSILON_PCT: f64 = 1e-6;

/// How much of a promise fits next to others, see [`Admissions::decide`].
pub type LeftFor<'a> = dyn Fn(&[&AdmissionRequest], &AdmissionRequest, &[(u32, f64)]) -> f64 + 'a;

/// Looks for which a refused promise has to fit before it is admitted again; doubled each time it was refused again.
pub const LOOKS: u32 = 10;
/// Doublings at most.
const DOUBLINGS: u32 = 5;

/// What is remembered of the promises, by name, from one look to the next.
#[derive(Debug, Clone, Default)]
pub struct Admissions {
    known: BTreeMap<String, Known>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    admitted: bool,
    /// Looks in a row in which it would have fitted since it was refused.
    fitted: u32,
    /// Times it was refused after it had been admitted.
    evicted: u32,
}

impl Admissions {
    /// Decides about each, in the order of `asks`. `left_for(admitted, ask, promisable)` says how much of `ask` fits alongside
    /// the admitted (which keep all of theirs): a maximum flow from promises to the CPUs they may use. It is passed in
    /// because the fair-share solver is no part of this crate.
    pub fn decide(
        &mut self,
        asks: &[AdmissionRequest],
        supply: &Supply,
        left_for: &LeftFor<'_>,
    ) -> Vec<Admission> {
        self.known.retain(|name, _| asks.iter().any(|ask| ask.name == *name));
        let promisable = supply.promisable();
        let mut order: Vec<usize> = (0..asks.len()).collect();
        order.sort_by_key(|&index| Reverse(asks[index].priority));
        let mut admitted: Vec<&AdmissionRequest> = Vec::new();
        // Admitted, or about to be: newcomers do not get what has to be taken from them again.
        let mut claimed: Vec<&AdmissionRequest> = Vec::new();
        let mut answers = vec![Admission::Fits; asks.len()];
        for index in order {
            let ask = &asks[index];
            let known = self.known.get(&ask.name).copied();
            let beside = if known.is_some_and(|known| known.admitted) { &admitted } else { &claimed };
            let left_pct = left_for(beside, ask, &promisable);
            let fits = left_pct >= ask.pct - EPSILON_PCT;
            if !fits {
                answers[index] = refused(ask, beside, &promisable, left_pct, left_for);
            }
            let known =
                known.map_or(Known { admitted: fits, fitted: 0, evicted: 0 }, |known| known.next(fits));
            if fits {
                claimed.push(ask);
            }
            if known.admitted {
                admitted.push(ask);
            } else if fits {
                answers[index] = Admission::Returns { looks: known.needed() - known.fitted };
            }
            self.known.insert(ask.name.clone(), known);
        }
        answers
    }
}

impl Known {
    fn needed(self) -> u32 {
        LOOKS << self.evicted.saturating_sub(1).min(DOUBLINGS)
    }

    fn next(self, fits: bool) -> Self {
        let fitted = if fits { self.fitted + 1 } else { 0 };
        match (self.admitted, fits) {
            (true, true) => self,
            (true, false) => Self { admitted: false, fitted: 0, evicted: self.evicted.saturating_add(1) },
            (false, _) if fitted >= self.needed() => Self { admitted: true, fitted: 0, ..self },
            (false, _) => Self { fitted, ..self },
        }
    }
}

fn refused(
    ask: &AdmissionRequest,
    beside: &[&AdmissionRequest],
    promisable: &[(u32, f64)],
    left_pct: f64,
    left_for: &LeftFor<'_>,
) -> Admission {
    // Stated over the CPUs it may use: those promised something there are who it competes with.
    let rivals = || beside.iter().filter(|other| !other.cpus.intersection(&ask.cpus).is_empty());
    let available_pct =
        promisable.iter().filter(|(cpu, _)| ask.cpus.contains(*cpu)).map(|(_, pct)| pct).sum();
    let equals: Vec<&AdmissionRequest> =
        beside.iter().filter(|other| other.priority <= ask.priority).copied().collect();
    let yields = left_for(&equals, ask, promisable) >= ask.pct - EPSILON_PCT;
    let higher = rivals().filter(|other| yields && other.priority > ask.priority);
    Admission::Refused {
        asked_pct: rivals().map(|other| other.pct).sum::<f64>() + ask.pct,
        available_pct,
        left_pct: left_pct.max(0.0),
        gives_way_to: higher.map(|other| format!("{} (priority {})", other.name, other.priority)).collect(),
    }
}

impl Admission {
    /// In words: `does not fit: asked 1255, available 1155 ..: it asks 155, 55 is left`. `None`: it fits.
    pub fn refusal(&self, ask: &AdmissionRequest) -> Option<String> {
        match self {
            Self::Fits => None,
            Self::Returns { looks } => {
                Some(format!("fits again, and is restored if it still does for {looks} more looks"))
            }
            Self::Refused { asked_pct, available_pct, left_pct, gives_way_to } => {
                let way = if gives_way_to.is_empty() {
                    String::new()
                } else {
                    format!("; it gives way to {}", gives_way_to.join(", "))
                };
                Some(format!(
                    "does not fit: asked {}, available {} (percent of one CPU, CPUs {}): it asks {}, {} is left{way}",
                    number(*asked_pct),
                    number(*available_pct),
                    ask.cpus,
                    number(ask.pct),
                    number(*left_pct)
                ))
            }
        }
    }
}

/// At most one decimal.
fn number(value: f64) -> String {
    let rounded = (value * 10.0).round() / 10.0;
    if rounded.fract().abs() < 1e-9 { format!("{rounded:.0}") } else { format!("{rounded:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cpus(n: u32) -> CpuSet {
        (0..n).collect()
    }

    fn ask(name: &str, pct: f64, cpus: CpuSet) -> AdmissionRequest {
        AdmissionRequest { name: name.into(), pct, cpus, priority: 0 }
    }

    /// All may use all CPUs: what is left is a difference.
    fn pool(admitted: &[&AdmissionRequest], ask: &AdmissionRequest, supply: &[(u32, f64)]) -> f64 {
        let total: f64 = supply.iter().map(|(_, pct)| pct).sum();
        (total - admitted.iter().map(|a| a.pct).sum::<f64>()).min(ask.pct)
    }

    fn admit(asks: &[AdmissionRequest], supply: &Supply, left_for: &LeftFor<'_>) -> Vec<Admission> {
        Admissions::default().decide(asks, supply, left_for)
    }

    fn supply(n: u32, stolen: f64) -> Supply {
        Supply { cpus: (0..n).map(|cpu| (cpu, 100.0 - stolen / f64::from(n))).collect(), reserved_pct: 0.0 }
    }

    #[test]
    fn what_does_not_fit_is_named_with_what_is_left() {
        // 12 CPUs, 45 points stolen: 1155 can be promised.
        let asks: Vec<AdmissionRequest> = (0..12)
            .map(|i| ask(&format!("s{i}"), if i < 11 { 100.0 } else { 155.0 }, cpus(12)))
            .chain([ask("small", 50.0, cpus(12))])
            .collect();
        let answers = admit(&asks, &supply(12, 45.0), &pool);
        assert!(answers[..11].iter().all(|a| *a == Admission::Fits));
        let text = answers[11].refusal(&asks[11]).unwrap();
        assert!(
            text.contains("asked 1255, available 1155") && text.contains("it asks 155, 55 is left"),
            "{text}"
        );
        assert_eq!(answers[12], Admission::Fits, "one that fits is not throttled for one that did not");
    }

    #[test]
    fn what_is_reserved_cannot_be_promised() {
        let mut supply = supply(2, 0.0);
        supply.reserved_pct = 50.0;
        assert_eq!(supply.promisable(), [(0, 75.0), (1, 75.0)]);
        let answers = admit(&[ask("a", 151.0, cpus(2))], &supply, &pool);
        assert!(matches!(answers[0], Admission::Refused { available_pct, .. } if available_pct == 150.0));
        supply.reserved_pct = 1e9;
        assert_eq!(supply.promisable(), [(0, 0.0), (1, 0.0)]);
    }

    fn ranked(name: &str, pct: f64, priority: i32) -> AdmissionRequest {
        AdmissionRequest { priority, ..ask(name, pct, cpus(1)) }
    }

    #[test]
    fn a_higher_priority_evicts_a_lower_one_which_comes_back_when_it_has_fitted_for_a_while() {
        let (low, high) = (ranked("low", 60.0, 0), ranked("high", 50.0, 7));
        let mut admissions = Admissions::default();
        let mut decide = |asks: &[AdmissionRequest]| admissions.decide(asks, &supply(1, 0.0), &pool);
        let alone = [low.clone()];
        assert_eq!(decide(&alone), [Admission::Fits]);
        let answers = decide(&[low.clone(), high.clone()]);
        assert_eq!(answers[1], Admission::Fits);
        let text = answers[0].refusal(&low).unwrap();
        assert!(text.contains("asks 60, 50 is left; it gives way to high (priority 7)"), "{text}");
        // The higher one ends.
        for look in 1..LOOKS {
            assert_eq!(decide(&alone), [Admission::Returns { looks: LOOKS - look }]);
        }
        assert_eq!(decide(&alone), [Admission::Fits]);
    }

    #[test]
    fn a_supply_that_goes_up_and_down_moves_nothing_back_and_forth() {
        let asks = [ranked("high", 50.0, 1), ranked("low", 45.0, 0)];
        let mut admissions = Admissions::default();
        let changes = (0..1000u32)
            .map(|look| admissions.decide(&asks, &supply(1, if look % 7 == 0 { 8.0 } else { 2.0 }), &pool))
            .map(|answers| answers[1] == Admission::Fits)
            .collect::<Vec<bool>>();
        assert!(changes.iter().all(|admitted| !admitted), "it never fits for {LOOKS} looks in a row");
    }

    proptest! {
        /// After however wild a past, a supply and promises that stay as they are settle, and then priorities hold.
        #[test]
        fn priorities_hold_and_nothing_flaps(
            asked in proptest::collection::vec((1.0f64..120.0, -3i32..3), 1..9),
            past in proptest::collection::vec(0.0f64..150.0, 0..60),
            stolen in 0.0f64..150.0,
        ) {
            let asks: Vec<AdmissionRequest> = asked
                .iter()
                .enumerate()
                .map(|(i, (pct, priority))| AdmissionRequest { priority: *priority, ..ask(&format!("x{i}"), *pct, cpus(2)) })
                .collect();
            let mut admissions = Admissions::default();
            let mut was: Option<Vec<bool>> = None;
            let mut changes = vec![0u32; asks.len()];
            let mut look = |stolen: f64| {
                let answers = admissions.decide(&asks, &supply(2, stolen), &pool);
                let is: Vec<bool> = answers.iter().map(|a| *a == Admission::Fits).collect();
                for (n, was) in was.iter().flatten().enumerate() {
                    changes[n] += u32::from(*was != is[n]);
                }
                was = Some(is.clone());
                is
            };
            for stolen in &past {
                look(*stolen);
            }
            // One comes back after the other.
            let settled = (0..(LOOKS << DOUBLINGS) * asks.len() as u32).map(|_| look(stolen)).last().unwrap();
            prop_assert_eq!(&(0..50).map(|_| look(stolen)).last().unwrap(), &settled, "it stays");
            for (n, count) in changes.iter().enumerate() {
                // Out, and back after 10 looks or more.
                prop_assert!(*count <= 3 + 2 * (past.len() as u32).div_ceil(LOOKS), "{n} changed {count} times");
            }
            let total: f64 = supply(2, stolen).promisable().iter().map(|(_, pct)| pct).sum();
            let sum: f64 = asks.iter().zip(&settled).filter(|(_, a)| **a).map(|(a, _)| a.pct).sum();
            prop_assert!(sum <= total + 1e-3);
            for (refused, _) in asks.iter().zip(&settled).filter(|(_, admitted)| !**admitted) {
                for (lower, _) in asks.iter().zip(&settled).filter(|(_, admitted)| **admitted) {
                    prop_assert!(
                        lower.priority >= refused.priority || sum - lower.pct + refused.pct > total,
                        "{} is admitted, {} is not", lower.name, refused.name
                    );
                }
            }
        }

        #[test]
        fn the_admitted_never_exceed_the_supply(asked in proptest::collection::vec(0.1f64..300.0, 0..20), n in 1u32..8, stolen in 0.0f64..90.0) {
            let asks: Vec<AdmissionRequest> = asked.iter().enumerate().map(|(i, pct)| ask(&format!("x{i}"), *pct, cpus(n))).collect();
            let supply = supply(n, stolen);
            let answers = admit(&asks, &supply, &pool);
            let sum: f64 = asks.iter().zip(&answers).filter(|(_, a)| **a == Admission::Fits).map(|(a, _)| a.pct).sum();
            prop_assert!(sum <= supply.promisable().iter().map(|(_, pct)| pct).sum::<f64>() + 1e-3);
            // And nobody is refused who would have fitted next to the admitted before it.
            let mut before = 0.0;
            for (ask, answer) in asks.iter().zip(&answers) {
                if *answer == Admission::Fits { before += ask.pct; } else {
                    prop_assert!(before + ask.pct > supply.promisable().iter().map(|(_, pct)| pct).sum::<f64>());
                }
            }
        }
    }
}
