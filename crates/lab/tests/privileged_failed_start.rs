//! A set that cannot start leaves nothing behind. Alone in its process, so that every group of ours is this test's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_lab::tenant::{Layout, Tenants};
use evenkeel_linux::testing::made_by;
use evenkeel_workload::Kind;
use evenkeel_workload::duty::{Duty, DutyKind};
use evenkeel_workload::load::LoadSpec;

fn duty(percent: f64) -> LoadSpec {
    let period = Duration::from_millis(20);
    LoadSpec::new(Kind::Duty(Duty { percent, period, jitter: 0.0, kind: DutyKind::Wall, seed: 3 }))
        .named("ek-lab-test")
}

#[test]
fn a_load_that_cannot_start_leaves_nothing() {
    for (binary, percent, says) in [
        ("/bin/false", 1.0, "ek-lab-test did not come up"),
        ("/no/such/file", 1.0, "/no/such/file"),
        ("/bin/true", 400.0, "--percent"),
    ] {
        for place in [Layout::OneCgroup, Layout::CgroupEach] {
            let specs = [duty(percent), duty(percent)];
            let error = Tenants::spawn(Path::new(binary), &specs, place).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            assert_eq!(made_by("lab", std::process::id()), Vec::<PathBuf>::new());
        }
    }
}
