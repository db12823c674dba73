//! What takes the CPU, in data and in words.

use std::fmt;

use super::fit::Threshold;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Nothing worth mentioning.
    Nothing,
    /// Another guest on the same core: this share of what is wanted, all the time.
    SharedCore { stolen: f64 },
    Throttled {
        /// The rule, once an end of throttling has shown it.
        threshold: Option<Threshold>,
        /// What is still given meanwhile, CPUs.
        given: f64,
    },
    /// Use is throttled, but so briefly or so little that no limit gives more than keeping below the threshold.
    Tolerable {
        /// What no limit gives on average, CPUs.
        rate: f64,
        /// What could be had without throttling, CPUs: no more than that.
        threshold: f64,
    },
    /// Only a baseline is given: spent credits, or a cap.
    Baseline {
        /// The baseline, CPUs: what credits are earned at.
        rate: f64,
        /// CPU seconds there were beyond it before.
        credit_s: f64,
    },
}

impl Verdict {
    /// What takes the CPU when services share what is given with the work that is held back.
    pub fn for_services(&self) -> String {
        let holding = "services and background work are held below that together";
        match self {
            Self::Tolerable { threshold, .. } => {
                format!("use above {:.1} % of a CPU is throttled: {holding}", 100.0 * threshold)
            }
            Self::Baseline { rate, .. } => {
                format!("{:.1} % of a CPU is given for good: {holding}", 100.0 * rate)
            }
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pct = |share: f64| 100.0 * share;
        match self {
            Self::Nothing => f.write_str("no steal: no limit"),
            Self::SharedCore { stolen } => write!(
                f,
                "a shared core: {:.0} % is stolen all the time, whatever is used; a limit would only cost more, so there \
                 is none",
                pct(*stolen)
            ),
            Self::Throttled { threshold: None, given } => write!(
                f,
                "use is throttled: only {:.1} % of a CPU is given; asking for little until it ends",
                pct(*given)
            ),
            Self::Throttled { threshold: Some(Threshold::Window { window_s, share }), .. } => write!(
                f,
                "use above {:.1} % of a CPU over about {window_s:.0} s is throttled: holding just below",
                pct(*share)
            ),
            Self::Throttled { threshold: Some(Threshold::Bucket { free, burst_s, penalty_s }), .. } => {
                write!(
                    f,
                    "use above {:.1} % of a CPU is throttled for {penalty_s:.0} s once it adds up to {burst_s:.0} CPU seconds: \
                 holding just below",
                    pct(*free)
                )
            }
            Self::Tolerable { rate, threshold } => write!(
                f,
                "no more than {:.1} % of a CPU can be had without being throttled, and {:.1} % is given all the same; a limit \
                 would only cost more, so there is none",
                pct(*threshold),
                pct(*rate)
            ),
            Self::Baseline { rate, credit_s } => write!(
                f,
                "{:.1} % of a CPU is given whatever is asked for, after {credit_s:.0} CPU seconds more: spent credits or a \
                 cap; a limit would only cost more, so there is none",
                pct(*rate)
            ),
        }
    }
}
