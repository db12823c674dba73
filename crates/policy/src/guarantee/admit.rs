//! Does it fit? Promises are admitted in the order in which they are stated; one that does not fit beside those before
//! it is refused, with what is left, and nothing is done for it.

use evenkeel_base::CpuSet;

/// One promise that asks to be admitted.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// What it is called in messages.
    pub name: String,
    /// Promised, percent of one CPU.
    pub pct: f64,
    /// CPUs its tasks may use.
    pub cpus: CpuSet,
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

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Admission {
    /// It fits.
    Fits,
    /// It does not fit.
    Refused {
        /// Sum of what was promised before on these CPUs and what this one asks, percent of one CPU.
        asked_pct: f64,
        /// What these CPUs can give, percent of one CPU.
        available_pct: f64,
        /// What is left for this one, percent of one CPU.
        left_pct: f64,
    },
}

/// Rounding that is forgiven, percent of one CPU.
const EPSILON_PCT: f64 = 1e-6;

/// How much of a promise fits beside others, see [`admit`].
pub type LeftFor<'a> = dyn Fn(&[&Ask], &Ask, &[(u32, f64)]) -> f64 + 'a;

/// Decides about each in order. `left_for(admitted, ask, promisable)` says how much of `ask` fits beside the admitted
/// (which keep all of theirs): a maximum flow from promises to the CPUs they may use. It is passed in because the
/// fair-share solver is no part of this crate.
pub fn admit(asks: &[Ask], supply: &Supply, left_for: &LeftFor<'_>) -> Vec<Admission> {
    let promisable = supply.promisable();
    let mut admitted: Vec<&Ask> = Vec::new();
    asks.iter()
        .map(|ask| {
            let left_pct = left_for(&admitted, ask, &promisable);
            if left_pct >= ask.pct - EPSILON_PCT {
                admitted.push(ask);
                return Admission::Fits;
            }
            // Stated over the CPUs it may use: those promised something there are who it competes with.
            let rivals: f64 =
                admitted.iter().filter(|a| !a.cpus.intersection(&ask.cpus).is_empty()).map(|a| a.pct).sum();
            let available_pct =
                promisable.iter().filter(|(cpu, _)| ask.cpus.contains(*cpu)).map(|(_, pct)| pct).sum();
            Admission::Refused { asked_pct: rivals + ask.pct, available_pct, left_pct: left_pct.max(0.0) }
        })
        .collect()
}

impl Admission {
    /// In words: `asked 1255, available 1155: it asks 155, 55 is left`.
    pub fn refusal(&self, ask: &Ask) -> Option<String> {
        match self {
            Self::Fits => None,
            Self::Refused { asked_pct, available_pct, left_pct } => Some(format!(
                "does not fit: asked {}, available {} (percent of one CPU, CPUs {}): it asks {}, {} is left",
                number(*asked_pct),
                number(*available_pct),
                ask.cpus,
                number(ask.pct),
                number(*left_pct)
            )),
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

    fn ask(name: &str, pct: f64, cpus: CpuSet) -> Ask {
        Ask { name: name.into(), pct, cpus }
    }

    /// All may use all CPUs: what is left is a difference.
    fn pool(admitted: &[&Ask], ask: &Ask, supply: &[(u32, f64)]) -> f64 {
        let total: f64 = supply.iter().map(|(_, pct)| pct).sum();
        (total - admitted.iter().map(|a| a.pct).sum::<f64>()).min(ask.pct)
    }

    fn supply(n: u32, stolen: f64) -> Supply {
        Supply { cpus: (0..n).map(|cpu| (cpu, 100.0 - stolen / f64::from(n))).collect(), reserved_pct: 0.0 }
    }

    #[test]
    fn what_does_not_fit_is_named_with_what_is_left() {
        // 12 CPUs, 45 points stolen: 1155 can be promised.
        let asks: Vec<Ask> = (0..12)
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
        assert_eq!(answers[12], Admission::Fits, "one that fits is not punished for one that did not");
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

    proptest! {
        #[test]
        fn the_admitted_never_exceed_the_supply(asked in proptest::collection::vec(0.1f64..300.0, 0..20), n in 1u32..8, stolen in 0.0f64..90.0) {
            let asks: Vec<Ask> = asked.iter().map(|pct| ask("x", *pct, cpus(n))).collect();
            let supply = supply(n, stolen);
            let answers = admit(&asks, &supply, &pool);
            let sum: f64 = asks.iter().zip(&answers).filter(|(_, a)| **a == Admission::Fits).map(|(a, _)| a.pct).sum();
            prop_assert!(sum <= supply.promisable().iter().map(|(_, pct)| pct).sum::<f64>() + 1e-3);
            // And nobody is refused who would have fitted beside the admitted before it.
            let mut before = 0.0;
            for (ask, answer) in asks.iter().zip(&answers) {
                if *answer == Admission::Fits { before += ask.pct; } else {
                    prop_assert!(before + ask.pct > supply.promisable().iter().map(|(_, pct)| pct).sum::<f64>());
                }
            }
        }
    }
}
