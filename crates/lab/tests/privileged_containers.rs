//! Tenants in real containers, with a Docker Engine of the test's own (Debian's docker.io).

mod common;
#[path = "../../observe/tests/common/docker.rs"]
#[allow(dead_code)]
mod docker;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::binary;
use docker::Docker;
use evenkeel_lab::tenant::{Layout, Starter};
use evenkeel_linux::testing::{made_by, until};
use evenkeel_workload::Kind;
use evenkeel_workload::duty::{Duty, DutyKind};
use evenkeel_workload::load::LoadSpec;

#[test]
fn loads_run_in_containers_and_are_gone_afterwards() {
    let engine = Docker::start("lab-test");
    let images = engine.run(&["images", "-q"]);
    let duty = Duty {
        percent: 2.0,
        period: Duration::from_millis(20),
        jitter: 0.0,
        kind: DutyKind::Closed,
        seed: 1,
    };
    let mut specs = vec![LoadSpec::new(Kind::Duty(duty)).named("ek-inside"); 2];
    specs[1].common.threads = Some(2);
    let starter = Starter::new(binary(), Layout::ContainerEach).engine(engine.socket());
    let tenants = starter.hold(&specs).unwrap();
    assert_eq!(tenants.members.len(), 3);
    let mut ids: Vec<&str> = tenants.members.iter().map(|m| m.container.as_deref().unwrap()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 2);
    let start = tenants.release();
    until("all work", || (0..3).all(|i| tenants.progress(i).unwrap().cycles > 3));
    for (index, member) in tenants.members.iter().enumerate() {
        let comm = fs::read_to_string(format!("/proc/{}/task/{}/comm", member.pid, member.tid)).unwrap();
        assert_eq!(comm, "ek-inside\n");
        let path = &member.cgroup.as_ref().unwrap().path;
        assert!(path.contains(member.container.as_deref().unwrap()), "{path}");
        assert!(tenants.progress(index).unwrap().started_ns >= start);
    }
    let running = engine.run(&["ps", "-q", "--no-trunc"]);
    assert_eq!(running.lines().count(), 2);
    assert!(ids.iter().all(|id| running.contains(id)));
    let pids: Vec<u32> = tenants.members.iter().map(|m| m.pid).collect();
    drop(tenants);
    assert!(pids.iter().all(|pid| !Path::new("/proc").join(pid.to_string()).exists()));
    assert_eq!(engine.run(&["ps", "-aq"]), "");
    assert_eq!(engine.run(&["images", "-q"]), images);
    assert_eq!(made_by("lab", std::process::id()), Vec::<PathBuf>::new());
}

#[test]
fn without_an_engine_the_error_says_what_to_do() {
    let duty =
        Duty { percent: 2.0, period: Duration::from_millis(20), jitter: 0.0, kind: DutyKind::Open, seed: 1 };
    let spec = LoadSpec::new(Kind::Duty(duty));
    let starter = Starter::new(binary(), Layout::ContainerEach).engine("/no/such/socket");
    let error = starter.hold(&[spec]).unwrap_err().to_string();
    assert!(error.contains("dockerd"), "{error}");
}
