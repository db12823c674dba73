//! What watching costs a load of nothing but context switches: two processes that pass a byte to and fro through pipes on
//! one CPU, in turns without and with the programs of `why`, with several targets. Needs root and a quiet machine.
//!
//!     cargo run --release -p evenkeel-bpf --example why_cost [ROUNDS]

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use evenkeel_bpf::why::{Probe, Watch, WatchOptions};

const TURN: Duration = Duration::from_millis(400);

type Error = Box<dyn std::error::Error>;

fn pin() -> io::Result<()> {
    // SAFETY: an all-zero set is valid, and only written by CPU_SET.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(1, &mut set);
        if libc::sched_setaffinity(0, size_of_val(&set), &raw const set) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Round trips a second over a turn. Each is two switches at least.
fn turn(to: &OwnedFd, from: &OwnedFd) -> Result<f64, Error> {
    let began = Instant::now();
    let mut trips = 0u32;
    let mut byte = [0u8];
    while began.elapsed() < TURN {
        for _ in 0..200 {
            rustix::io::write(to, &byte)?;
            rustix::io::read(from, &mut byte)?;
        }
        trips += 200;
    }
    Ok(f64::from(trips) / began.elapsed().as_secs_f64())
}

fn start_ticks() -> Result<u64, Error> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let rest = stat.rsplit_once(')').ok_or("stat")?.1;
    Ok(rest.split_whitespace().nth(19).ok_or("stat")?.parse()?)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Error> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(7), |n| n.parse())?;
    pin()?;
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
    let me = (std::process::id(), start_ticks()?);
    let targets = [
        ("another process", Watch::Processes(vec![(1, 0)])),
        ("one side of it", Watch::Processes(vec![me])),
        ("both sides of it", Watch::Processes(vec![me, (child as u32, 0)])),
        ("a cgroup elsewhere", Watch::Groups(vec![u64::MAX])),
        ("everything (--all)", Watch::All),
    ];
    turn(&to, &from)?;
    println!(
        "{:<20} {:>14} {:>14} {:>8}   lowest to highest loss",
        "target", "without /s", "with /s", "loss"
    );
    for (name, watch) in targets {
        let (mut without, mut with, mut losses) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let before = turn(&to, &from)?;
            let probe = Probe::start(&types, &watch, &WatchOptions::default())?;
            let watched = turn(&to, &from)?;
            drop(probe);
            let after = turn(&to, &from)?;
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
    println!("(switches a second, medians of {rounds} turns of {TURN:?})");
    drop((to, from));
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    Ok(())
}
