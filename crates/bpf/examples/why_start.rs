//! What the start of the programs of `why` costs: instructions the kernel's verifier walks for each, and the CPU time of
//! this process. Needs root.
//!
//!     cargo run --release -p evenkeel-bpf --example why_start [ROUNDS]

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_bpf::why::{Probe, Watch, WatchOptions};

type Error = Box<dyn std::error::Error>;

/// CPU time of this process so far: its own, and the kernel's on its behalf.
fn cpu_time() -> (Duration, Duration) {
    // SAFETY: an all-zero rusage is valid, and only written by getrusage.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let span = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    (span(usage.ru_utime), span(usage.ru_stime))
}

fn main() -> Result<(), Error> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(3), |n| n.parse())?;
    let mut walked: BTreeMap<String, u32> = BTreeMap::new();
    println!("{:<8} {:>10} {:>10}", "start", "user ms", "kernel ms");
    for round in 1..=rounds {
        let before = cpu_time();
        let types = evenkeel_bpf::load::kernel_types()?;
        let parsed = cpu_time();
        let probe = Probe::start(&types, &Watch::All, &WatchOptions::default())?;
        let after = cpu_time();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "{round:<8} {:>10.1} {:>10.1}   (types: {:.1} and {:.1})",
            ms(after.0 - before.0),
            ms(after.1 - before.1),
            ms(parsed.0 - before.0),
            ms(parsed.1 - before.1),
        );
        walked.extend(probe.verified_instructions()?);
    }
    println!("\n{:<18} instructions verified", "program");
    for (name, count) in &walked {
        println!("{name:<18} {count:>8}");
    }
    println!("{:<18} {:>8}", "all", walked.values().map(|count| u64::from(*count)).sum::<u64>());
    Ok(())
}
