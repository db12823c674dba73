//! Real containers of a Docker Engine: names, limits, throttling, and tasks as they come and go.

mod common;

use std::time::Duration;

use common::docker::{Docker, IMAGE};
use evenkeel_base::{ContainerView, GroupView, Observation};
use evenkeel_linux::Root;
use evenkeel_linux::testing::{awaited, until};
use evenkeel_observe::runtimes::{Address, ask_once};
use evenkeel_observe::{Detail, Endpoints, Observer, ObserverOptions, Select};

const SPIN: &str = "while :; do :; done";

fn look(observer: &mut Observer, detail: &Detail) -> Observation {
    let before = observer.sample().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let after = observer.sample().unwrap();
    observer.observe(&before, &after, detail).unwrap()
}

fn container<'a>(seen: &'a Observation, name: &str) -> Option<(&'a ContainerView, &'a GroupView)> {
    let container = seen.containers.iter().find(|container| container.name == name)?;
    Some((container, &seen.groups[container.group? as usize]))
}

#[test]
fn a_container_is_seen_with_its_name_and_limits() {
    let docker = Docker::start("seen");
    let id = docker.run(&[
        "run",
        "-d",
        "--network=none",
        "--name=tenant",
        "--label=evenkeel.share=25",
        "--cpu-shares=512",
        "--cpu-quota=5000",
        "--cpu-period=100000",
        "--cpuset-cpus=0",
        IMAGE,
        "/bin/sh",
        "-c",
        SPIN,
    ]);
    let options = ObserverOptions {
        runtimes: Endpoints { docker: vec![("docker".into(), docker.socket())], cri: vec![] },
        switches: Select::All,
        ..ObserverOptions::default()
    };
    // Where it is reached: nowhere, as one of no network.
    docker.run(&["run", "-d", "--network=host", "--name=node", IMAGE, "/bin/busybox", "sleep", "600"]);
    let facts = ask_once(&options.runtimes).unwrap();
    let address = |name: &str| facts.containers.values().find(|facts| facts.name == name).unwrap().address;
    assert_eq!((address("tenant"), address("node")), (None, Some(Address::Host)));
    let mut observer = Observer::new(&Root::host(), options).unwrap();
    observer.wait_for_runtimes(Duration::from_secs(10));
    let seen = look(&mut observer, &Detail::All);
    let (view, group) = container(&seen, "tenant").expect("the container is seen by its name");
    assert_eq!((view.id.as_str(), view.runtime.as_str(), view.confirmed), (id.as_str(), "docker", true));
    assert!(view.labels.contains(&("evenkeel.share".into(), "25".into())), "{:?}", view.labels);
    assert_eq!(group.quota.unwrap().pct(), Some(5.0));
    // Shares as they are on v1, converted by runc on v2 (512 is between v2's 20 and 60 by either conversion).
    assert!(if group.v2 {
        (19..=60).contains(&group.raw_weight.unwrap())
    } else {
        group.raw_weight == Some(512)
    });
    assert_eq!(group.cpuset.as_ref().unwrap().to_string(), "0");
    assert!(group.throttled_periods.is_some() && group.cpu_pct.is_some(), "{group:?}");
    let task = seen
        .tasks
        .iter()
        .filter(|task| task.container.is_some_and(|at| seen.containers[at as usize].name == "tenant"))
        .max_by(|a, b| a.cpu_pct.total_cmp(&b.cpu_pct))
        .unwrap();
    assert!(task.cpu_pct > 0.0 && task.wait_pct.unwrap() > 0.0, "{task:?}");
    assert_eq!((task.cpu, task.affinity.as_ref().unwrap().to_string()), (Some(0), "0".into()));
    assert!(task.involuntary_per_s.is_some());

    // On a busy machine even 5 % may take a while to use up; throttled it is in the end.
    until("a spinner at 5 % is throttled", || {
        container(&look(&mut observer, &Detail::None), "tenant").unwrap().1.throttled_pct != Some(0.0)
    });

    // A container started later gets its name without anybody waiting for it.
    docker.run(&["run", "-d", "--network=none", "--name=late", IMAGE, "/bin/sh", "-c", SPIN]);
    awaited(20, || {
        let seen = look(&mut observer, &Detail::None);
        let named = container(&seen, "late").is_some_and(|(view, _)| view.confirmed);
        named.then_some(()).ok_or_else(|| format!("never named: {:?}", seen.containers))
    });
    // A one-shot command has one look only: it waits until the newcomer has its name.
    docker.run(&["run", "-d", "--network=none", "--name=newcomer", IMAGE, "/bin/sh", "-c", SPIN]);
    let (before, after) = (observer.sample().unwrap(), observer.sample().unwrap());
    let seen = observer.observe_named(&before, &after, &Detail::None, Duration::from_secs(10)).unwrap();
    assert!(container(&seen, "newcomer").is_some_and(|(view, _)| view.confirmed), "{:?}", seen.containers);
    docker.run(&["rm", "-f", "newcomer"]);
    // One that ended is no longer seen.
    docker.run(&["rm", "-f", "late"]);
    look(&mut observer, &Detail::None);
    assert!(container(&look(&mut observer, &Detail::None), "late").is_none());
}
