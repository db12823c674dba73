//! `isolation-fd`: `isolation-sys` with a file that really contends. Threads with descriptors of their own hardly meet in
//! the kernel, even on the same file; through one descriptor each `read()` holds the lock of its position. It stands
//! against `pread()` of own files, which locks nothing that is shared.

use evenkeel_experiment::laboratory::Experiment;

use super::{Builtin, Plan, isolation_sys, sieve};

pub(super) const BUILTIN: Builtin = Builtin {
    name: "isolation-fd",
    about: "a reader beside a burner of CPU, at 10 to 90 % of the machine: one descriptor for all threads, whose position each read() locks, against pread of own files, under cpuset, shares and quota",
    sources: &[],
    make,
};

/// What a read through the descriptor of all costs while others wait for it, nanoseconds.
const READ_NS: f64 = 1000.0;

fn make(plan: &Plan) -> Experiment {
    // One thread reads at a time, however many CPUs there are.
    let seconds = plan.pick(0.2, 3.0);
    let last = sieve::last_number(plan, sieve::READ_FROM, seconds, READ_NS);
    isolation_sys::by_share(
        plan,
        last,
        &[("one descriptor", "same --shared-fd"), ("own files by pread", "own --pread")],
    )
}
