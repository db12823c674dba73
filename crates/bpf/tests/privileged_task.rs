//! The task iterator on the running kernel.

use evenkeel_bpf::load::kernel_types;
use evenkeel_bpf::task::TaskProbe;

#[test]
fn every_task_gives_a_record() {
    let btf = kernel_types().unwrap();
    let mut probe = TaskProbe::load(&btf).unwrap();
    let mut buffer = Vec::new();
    probe.read(&mut buffer).unwrap();
    assert!(buffer.len() >= 80, "{}", buffer.len());
}
