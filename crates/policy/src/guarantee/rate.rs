//! What raises the rate of a closed loop that is given its share of the time in which it is runnable.
//!
//! Such a loop loses what it waits. No weight helps it further: it has to wait less often, or less long. What does that
//! takes from others more than the promise says, so it is offered and not done.

/// What may be offered on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allowed {
    /// Tasks can have a slice of their own (Linux 6.12).
    pub task_slice: bool,
    /// Real-time classes are allowed by the user.
    pub realtime: bool,
}

/// What to offer, the mildest first.
pub fn offers(promised_pct: f64, allowed: Allowed) -> Vec<String> {
    let mut offers = vec![
        "tiers: let those who may wait run only when it does not: `cpu.idle` = 1 for their cgroup, or in its own cgroup \
         `chrt --idle --pid 0 PID` for each"
            .to_owned(),
    ];
    if allowed.task_slice {
        offers.push(
            "slices: fewer interruptions once it runs: `chrt --batch --sched-runtime 100000000 --pid 0 PID` (util-linux \
             2.42)"
                .to_owned(),
        );
    }
    if allowed.realtime && promised_pct <= MOST_DEADLINE_PCT {
        let runtime_ms = (promised_pct / 100.0 * PERIOD_MS).max(1.0);
        let (runtime_ns, period_ns) = ((runtime_ms * 1e6) as u64, (PERIOD_MS * 1e6) as u64);
        offers.push(format!(
            "SCHED_DEADLINE, for one thread without a CPU mask: `chrt --deadline --sched-runtime {runtime_ns} \
             --sched-deadline {period_ns} --sched-period {period_ns} --pid 0 PID`; evenkeel does not set it"
        ));
    }
    offers
}

/// Period of the reservation that is offered, milliseconds.
const PERIOD_MS: f64 = 100.0;
/// Most that the kernel admits by default: `sched_rt_runtime_us` of `sched_rt_period_us`.
const MOST_DEADLINE_PCT: f64 = 95.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_to_be_had_is_not_offered() {
        let kinds = |promised, allowed| -> Vec<String> {
            let of = |offer: &String| offer.split([':', ',']).next().unwrap_or_default().to_owned();
            offers(promised, allowed).iter().map(of).collect()
        };
        assert_eq!(kinds(40.0, Allowed::default()), ["tiers"]);
        let all = Allowed { task_slice: true, realtime: true };
        assert_eq!(kinds(40.0, all), ["tiers", "slices", "SCHED_DEADLINE"]);
        assert_eq!(kinds(120.0, all), ["tiers", "slices"], "one thread has no more than a CPU");
        assert!(offers(40.0, all)[2].contains("--sched-runtime 40000000 --sched-deadline 100000000"));
    }
}
