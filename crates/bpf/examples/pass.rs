//! What a pass of the task iterator costs: `cargo run --release -p evenkeel-bpf --example pass -- [THREADS] [PASSES]`

use std::time::Duration;

use evenkeel_bpf::load::kernel_types;
use evenkeel_bpf::task::{Room, TaskProbe};

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number =
        |at: usize, default: usize| std::env::args().nth(at).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (threads, passes) = (number(1, 2000), number(2, 200));
    for _ in 0..threads {
        std::thread::Builder::new()
            .stack_size(16 << 10)
            .spawn(|| std::thread::sleep(Duration::from_secs(3600)))?;
    }
    let begin = cpu_seconds();
    let types = kernel_types()?;
    let parsed = cpu_seconds();
    let mut probe = TaskProbe::load(&types, Some(Room::default()))?;
    println!("types {:.1} ms, loading {:.1} ms", (parsed - begin) * 1e3, (cpu_seconds() - parsed) * 1e3);
    let (mut tasks, mut sum) = (0u64, 0u64);
    let begin = cpu_seconds();
    for _ in 0..passes {
        probe.read(|record| {
            tasks += 1;
            sum = sum.wrapping_add(record.ran_ns);
        })?;
    }
    let spent = cpu_seconds() - begin;
    println!("{} tasks a pass, {:.0} ns each ({sum:x})", tasks / passes as u64, spent * 1e9 / tasks as f64);
    Ok(())
}
