//! What keeping history costs: 2,000 tasks of which 50 change, 50 cgroups, one sample a second, for an hour; or as said. With a
//! directory, the history stays there. LOST is what a crash may cost, seconds: with more than a block's 30 nothing is committed in
//! between, which shows what that costs.
//!
//! ```text
//! cargo run --release -p evenkeel-store --example history_cost [TASKS CHANGING SECONDS CGROUPS [DIRECTORY [LOST]]]
//! ```

use std::time::Instant;

use evenkeel_base::{CpuTimes, GroupSample, Sample, TaskId, TaskSample};
use evenkeel_store::{Limits, Store, TaskInfo};
use rand::{Rng, SeedableRng};

const S: u64 = 1_000_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u32| args.get(at).map_or(Ok(otherwise), |text| text.parse());
    let (tasks, changing, seconds) = (number(0, 2000)?, number(1, 50)?, u64::from(number(2, 3600)?));
    let groups = number(3, 50)?;
    let limits = Limits::default();
    let limits = Limits { tail_seconds: u64::from(number(5, limits.tail_seconds as u32)?), ..limits };
    let dir = tempfile::tempdir()?;
    let path = args.get(4).map_or(dir.path(), std::path::Path::new).join("history.db");
    let mut random = rand_pcg::Pcg64::seed_from_u64(42);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos() as u64;
    let mut store = Store::open(&path, limits)?;
    let mut sample = Sample {
        monotonic_ns: 1000 * S,
        wall_ns: now - seconds * S,
        cpus: (0..2)
            .map(|cpu| CpuTimes { cpu, busy_ns: 0, idle_ns: 0, irq_ns: 0, steal_ns: Some(0) })
            .collect(),
        tasks: Vec::new(),
        groups: (0..groups)
            .map(|n| GroupSample {
                path: format!("/kubepods/pod{n:08x}"),
                usage_ns: Some(random.random_range(0..S)),
                nr_periods: Some(0),
                nr_throttled: Some(0),
                throttled_ns: Some(0),
            })
            .collect(),
        exited: Vec::new(),
    };
    for n in 1..=tasks {
        let id = TaskId { tgid: n * 7, tid: n * 7, start_time: u64::from(n) * 31 };
        store.name_task(id, TaskInfo { comm: format!("task-{}", n % 200), ..TaskInfo::default() });
        sample.tasks.push(TaskSample {
            id,
            cpu: Some(n % 2),
            ran_ns: random.random_range(0..100 * S),
            waited_ns: Some(random.random_range(0..100 * S)),
            timeslices: Some(random.random_range(0..1_000_000)),
            voluntary: Some(random.random_range(0..1_000_000)),
            involuntary: Some(random.random_range(0..1_000_000)),
        });
    }
    let mut worst = std::time::Duration::ZERO;
    let started = Instant::now();
    for _ in 0..seconds {
        sample.monotonic_ns += S;
        sample.wall_ns += S;
        for cpu in &mut sample.cpus {
            cpu.busy_ns += random.random_range(0..S);
            cpu.idle_ns += random.random_range(0..S);
        }
        for group in sample.groups.iter_mut().take(20) {
            group.usage_ns = group.usage_ns.map(|usage| usage + random.random_range(0..S / 10));
        }
        for n in 0..changing {
            let task = &mut sample.tasks[(n * tasks / changing) as usize];
            task.cpu = Some(random.random_range(0..2));
            task.ran_ns += random.random_range(0..S / 10);
            task.waited_ns = task.waited_ns.map(|n| n + random.random_range(0..S / 10));
            task.timeslices = task.timeslices.map(|n| n + random.random_range(0..100));
            task.voluntary = task.voluntary.map(|n| n + random.random_range(0..100));
            task.involuntary = task.involuntary.map(|n| n + random.random_range(0..100));
        }
        let before = Instant::now();
        store.add_sample(&sample)?;
        worst = worst.max(before.elapsed());
    }
    store.flush()?;
    let per_sample = started.elapsed() / seconds as u32;
    let usage = store.usage()?;
    let kept: u64 = usage.samples.iter().sum();
    println!(
        "{tasks} tasks, {changing} of them change; {seconds} samples added, {kept} kept: {:?}",
        usage.samples
    );
    println!("CPU per sample: {per_sample:?} mean, {worst:?} worst (thinning included)");
    println!(
        "bytes: {} of samples, {} on disk; {:.2} per task and sample kept, {:.1} per changed one",
        usage.sample_bytes,
        usage.disk_bytes,
        usage.sample_bytes as f64 / (kept * u64::from(tasks)) as f64,
        usage.sample_bytes as f64 / (kept * u64::from(changing)) as f64,
    );
    let before = Instant::now();
    let rates = store.rates(now - 600 * S, now)?.ok_or("no rates")?;
    println!("rates over {} s from {} samples: {:?}", rates.seconds, rates.samples, before.elapsed());
    drop(store);
    Ok(())
}
