//! What observing costs: starts sleeping processes and some that run a little, samples and observes once a second,
//! and prints the CPU and memory it took itself: in user and kernel mode, by this thread's clock.
//!
//! `cargo run --release -p evenkeel-observe --example cost -- [SLEEPING] [BUSY] [SECONDS] [FORKS_PER_SECOND] [bpf|proc]`

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_linux::Root;
use evenkeel_observe::{Detail, Observer, ObserverOptions, Sampling};

/// Children that end with this program.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

fn child(mode: &str) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?).arg(mode).stdin(Stdio::null()).spawn()
}

fn cpu_seconds() -> f64 {
    // Exact to the instant; /proc/self/schedstat of a running task is as old as the last tick.
    evenkeel_linux::sys::thread_cpu_ns() as f64 / 1e9
}

fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let status = evenkeel_linux::pid_status::parse(&status).unwrap_or_default();
    status.rss_bytes.unwrap_or(0) as f64 / f64::from(1 << 20)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("sleep") => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        Some("tick") => loop {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(200) {}
            std::thread::sleep(Duration::from_millis(50));
        },
        _ => {}
    }
    let number =
        |index: usize, default: u64| args.get(index).and_then(|arg| arg.parse().ok()).unwrap_or(default);
    let (sleeping, busy, seconds, forks) = (number(0, 1950), number(1, 50), number(2, 10), number(3, 2));
    let mut children = Children(Vec::new());
    for n in 0..sleeping + busy {
        children.0.push(child(if n < sleeping { "sleep" } else { "tick" })?);
    }
    std::thread::sleep(Duration::from_secs(2));
    let root = Root::host();
    let sampling = match args.get(4).map(String::as_str) {
        Some("proc") => Sampling::Proc,
        Some("bpf") => Sampling::Bpf,
        None => Sampling::Auto,
        Some(other) => return Err(format!("{other}: bpf or proc").into()),
    };
    let begin = cpu_seconds();
    let mut observer = Observer::new(&root, ObserverOptions { sampling, ..ObserverOptions::default() })?;
    println!("sampling by {:?}, prepared in {:.1} ms", observer.sampling(), (cpu_seconds() - begin) * 1e3);
    let begin = cpu_seconds();
    let mut before = observer.sample()?;
    println!("first sample: {} tasks, {:.1} ms", before.tasks.len(), (cpu_seconds() - begin) * 1e3);
    // New tasks are read more often for three samples.
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        observer.sample()?;
    }
    let (mut sampling, mut observing, mut longest) = (0.0f64, 0.0f64, 0.0f64);
    let start = Instant::now();
    for _ in 0..seconds {
        for _ in 0..forks {
            Command::new("/bin/true").status()?;
        }
        std::thread::sleep(Duration::from_secs(1));
        let (a, wall) = (cpu_seconds(), Instant::now());
        let after = observer.sample()?;
        longest = longest.max(wall.elapsed().as_secs_f64());
        let b = cpu_seconds();
        let observation = observer.observe(&before, &after, &Detail::None)?;
        let c = cpu_seconds();
        sampling += b - a;
        observing += c - b;
        before = after;
        if observation.tasks.is_empty() {
            return Err("nothing observed".into());
        }
    }
    let wall = start.elapsed().as_secs_f64();
    println!(
        "{} tasks at 1 Hz for {wall:.1} s: sampling {:.2} us, observing {:.2} us a task; {:.3} % of one CPU; longest \
         sample {:.1} ms; resident {:.1} MiB",
        before.tasks.len(),
        1e6 * sampling / (seconds as f64 * before.tasks.len() as f64),
        1e6 * observing / (seconds as f64 * before.tasks.len() as f64),
        100.0 * (sampling + observing) / wall,
        longest * 1e3,
        rss_mib(),
    );
    Ok(())
}
