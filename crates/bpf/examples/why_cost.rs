//! What watching costs a load of context switches: two processes that pass a byte to and fro through pipes on one CPU, in
//! turns without and with the programs of `why`, with several targets, and the flight recorder; once with nothing else to do, once with so much
//! work between that they switch 200,000 times a second. Needs root and a quiet machine.
//!
//!     cargo run --release -p evenkeel-bpf --example why_cost [ROUNDS]

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use evenkeel_bpf::flight::Recorder;
use evenkeel_bpf::load::Types;
use evenkeel_bpf::why::{Probe, Watch, WatchOptions};

const TURN: Duration = Duration::from_millis(400);
/// Round trips a second of the load that works between its switches; two switches each.
const WORKING_TRIPS: f64 = 100_000.0;

type Error = Box<dyn std::error::Error>;

/// What costs something.
enum Programs {
    Why(Watch, WatchOptions),
    /// The flight recorder, for a minute.
    Flight,
}

/// At work until dropped.
enum AtWork {
    Why(Probe),
    Flight(Recorder),
}

impl Programs {
    fn start(&self, types: &Types) -> Result<AtWork, Error> {
        Ok(match self {
            Self::Why(watch, options) => AtWork::Why(Probe::start(types, watch, options)?),
            Self::Flight => {
                // This process may use one CPU only.
                let cpus = (evenkeel_linux::sys::usable_cpus().len() as u32).max(2);
                AtWork::Flight(Recorder::start(types, cpus, 60.0)?)
            }
        })
    }
}

fn work(count: u32) {
    for i in 0..count {
        std::hint::black_box(i);
    }
}

/// Counts that take the time by which a round trip is to grow, from `trips` a second to [`WORKING_TRIPS`].
fn work_between(trips: f64) -> u32 {
    const MANY: u32 = 50_000_000;
    let began = Instant::now();
    work(MANY);
    let each_s = began.elapsed().as_secs_f64() / f64::from(MANY);
    ((1.0 / WORKING_TRIPS - 1.0 / trips).max(0.0) / each_s) as u32
}

/// Round trips a second over a turn, with `counts` of work in each. Each is two switches at least.
fn turn(to: &OwnedFd, from: &OwnedFd, counts: u32) -> Result<f64, Error> {
    let began = Instant::now();
    let mut trips = 0u32;
    let mut byte = [0u8];
    while began.elapsed() < TURN {
        for _ in 0..200 {
            work(counts);
            rustix::io::write(to, &byte)?;
            rustix::io::read(from, &mut byte)?;
        }
        trips += 200;
    }
    Ok(f64::from(trips) / began.elapsed().as_secs_f64())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Error> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(7), |n| n.parse())?;
    evenkeel_linux::sys::setaffinity(0, &[1].into_iter().collect())?;
    let (theirs, to) = rustix::pipe::pipe()?;
    let (from, back) = rustix::pipe::pipe()?;
    // SAFETY: no other thread exists; the child only reads and writes until its pipe ends, then leaves at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop((to, from));
        let mut byte = [0u8];
        while rustix::io::read(&theirs, &mut byte) == Ok(1) && rustix::io::write(&back, &byte).is_ok() {}
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    drop((theirs, back));
    let types = evenkeel_bpf::load::kernel_types()?;
    let pid = std::process::id();
    let me = (pid, evenkeel_linux::process::start_time(pid, pid)?);
    let why =
        |watch, waits_only| Programs::Why(watch, WatchOptions { waits_only, ..WatchOptions::default() });
    let (blame, waits) = (false, true);
    let targets = [
        ("another process", why(Watch::Processes(vec![(1, 0)]), blame)),
        ("one side of it", why(Watch::Processes(vec![me]), blame)),
        ("both sides of it", why(Watch::Processes(vec![me, (child as u32, 0)]), blame)),
        ("a cgroup elsewhere", why(Watch::Groups(vec![u64::MAX]), blame)),
        ("everything (--all)", why(Watch::All, blame)),
        ("waits of another", why(Watch::Processes(vec![(1, 0)]), waits)),
        ("waits of both sides", why(Watch::Processes(vec![me, (child as u32, 0)]), waits)),
        ("waits of everything", why(Watch::All, waits)),
        ("flight recorder", Programs::Flight),
    ];
    for (name, programs) in &targets {
        let mut took = Vec::new();
        for _ in 0..rounds {
            let began = Instant::now();
            drop(programs.start(&types)?);
            took.push(1e3 * began.elapsed().as_secs_f64());
        }
        let took = median(&mut took);
        let walked = match programs.start(&types)? {
            AtWork::Why(probe) => probe.verified_instructions()?,
            AtWork::Flight(recorder) => {
                println!("{name:<20} starts in {took:.0} ms; {} MiB", recorder.bytes() >> 20);
                continue;
            }
        };
        let (all, most) = walked.iter().fold((0, 0), |(all, most), (_, n)| (all + n, most.max(*n)));
        println!("{name:<20} starts in {took:.0} ms; {all} instructions verified, {most} of one");
    }
    let plain = turn(&to, &from, 0)?;
    for (load, counts) in [("nothing but switches", 0), ("work between", work_between(plain))] {
        println!(
            "{load}\n{:<20} {:>14} {:>14} {:>8}   lowest to highest loss",
            "target", "without /s", "with /s", "loss"
        );
        for (name, programs) in &targets {
            let (mut without, mut with, mut losses) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..rounds {
                let before = turn(&to, &from, counts)?;
                let at_work = programs.start(&types)?;
                let watched = turn(&to, &from, counts)?;
                drop(at_work);
                let after = turn(&to, &from, counts)?;
                let plain = (before + after) / 2.0;
                losses.push(100.0 * (1.0 - watched / plain));
                without.push(plain);
                with.push(watched);
            }
            let loss = median(&mut losses);
            println!(
                "{name:<20} {:>14.0} {:>14.0} {loss:>6.1} %   {:.1} to {:.1} %",
                2.0 * median(&mut without),
                2.0 * median(&mut with),
                losses[0],
                losses[losses.len() - 1]
            );
        }
    }
    println!("(switches a second, medians of {rounds} turns of {TURN:?})");
    drop((to, from));
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    Ok(())
}
