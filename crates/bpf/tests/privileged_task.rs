//! The task iterator on the running kernel.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_bpf::load::kernel_types;
use evenkeel_bpf::task::TaskProbe;

#[test]
fn every_task_gives_a_record() {
    let btf = kernel_types().unwrap();
    let mut probe = TaskProbe::load(&btf, true).unwrap();
    let mut seen = Vec::new();
    probe.read(|record| seen.push(record)).unwrap();
    for r in &seen[..3] { println!("{r:?} {:?}", String::from_utf8_lossy(r.comm())); }
    let own = seen.iter().find(|r| r.tid == std::process::id());
    println!("{own:?} {}", seen.len());
    std::process::Command::new("true").status().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    probe.read(|_| ()).unwrap();
    println!("{:?} {}", probe.exited().unwrap(), probe.lost());
}
