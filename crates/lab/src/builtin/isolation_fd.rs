//! `isolation-fd`: `isolation-sys` with a file that threads contend for even on two CPUs: through one descriptor each
//! `read()` holds the lock of its position. It stands against `pread()` of own files, which takes no lock that is shared.

use evenkeel_experiment::file::Experiment;

use super::{Builtin, Plan, isolation_sys, sieve};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "isolation-fd",
    about: "a reader next to a burner of CPU, at 10 to 90 % of the machine: one descriptor for all threads, whose position each read() locks, against pread of own files, under cpuset, shares and quota",
    sources: &[],
    make,
};

/// What a read through the descriptor of all costs while others wait for it, nanoseconds; measured: 500, and 270 alone.
const READ_NS: f64 = 500.0;

fn make(plan: &Plan) -> Experiment {
    // One thread reads at a time, however many CPUs there are. Much shorter, and weights have not come into force yet.
    let seconds = plan.pick(0.25, 1.5) * f64::from(plan.count().min(2));
    let last = sieve::last_number(plan, sieve::READ_FROM, seconds, READ_NS);
    isolation_sys::by_share(
        plan,
        last,
        &[("one descriptor", "same --shared-fd"), ("own files by pread", "own --pread")],
    )
}
