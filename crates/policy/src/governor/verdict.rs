//! What takes the CPU, in data and in words.

use std::fmt;

use super::fit::Edge;

/// What takes the CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Nothing worth mentioning.
    Nothing,
    /// Another guest on the same core: this share of what is wanted, all the time.
    SharedCore {
        /// Share stolen.
        stolen: f64,
    },
    /// Use is punished.
    Punished {
        /// The rule, once an end of punishment has shown it.
        edge: Option<Edge>,
        /// What is still given meanwhile, CPUs.
        given: f64,
    },
    /// Use is punished, but so briefly that no limit gives more than keeping below the edge.
    Tolerable {
        /// What no limit gives on average, CPUs.
        rate: f64,
        /// What could be had without punishment, CPUs.
        edge: f64,
    },
    /// Only a baseline is given: spent credits, or a cap.
    Baseline {
        /// The baseline, CPUs: what credits are earned at.
        rate: f64,
        /// CPU seconds there were beyond it before.
        credit_s: f64,
    },
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
            Self::Punished { edge: None, given } => write!(
                f,
                "use is punished: only {:.1} % of a CPU is given; asking for little until it ends",
                pct(*given)
            ),
            Self::Punished { edge: Some(Edge::Window { window_s, share }), .. } => write!(
                f,
                "use above {:.1} % of a CPU over about {window_s:.0} s is punished: holding just below",
                pct(*share)
            ),
            Self::Punished { edge: Some(Edge::Bucket { free, burst_s, penalty_s }), .. } => write!(
                f,
                "use above {:.1} % of a CPU is punished for {penalty_s:.0} s once it adds up to {burst_s:.0} CPU seconds: \
                 holding just below",
                pct(*free)
            ),
            Self::Tolerable { rate, edge } => write!(
                f,
                "use above {:.1} % of a CPU is punished, but so briefly that {:.1} % is given all the same; a limit would \
                 only cost more, so there is none",
                pct(*edge),
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
