use evenkeel_actuate::ChangeOutcome;
use evenkeel_policy::governor::{Governor, Rules, Threshold};

use super::super::LEAST;
use super::*;

/// A cgroup with a task in it, and where its files are.
fn work() -> (tempfile::TempDir, Hierarchies, Observation) {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("work")).unwrap();
    let mount_point = root.path().to_str().unwrap().to_owned();
    let cpu = Some(Hierarchy { mount_point, root: "/".into(), v2: true });
    let layout = evenkeel_linux::mountinfo::Layout::V2;
    let hierarchies = Hierarchies { layout, cpu, cpuset: None, cpuacct: None, memory: None, unified: None };
    let mut host = crate::testing::observation(&[("/", None), ("/work", Some(0))]);
    host.tasks = vec![crate::testing::task(7, "job", 1)];
    (root, hierarchies, host)
}

/// The kubelet gives containers other CPUs whenever a pod gets some of its own. Waits on CPUs that are not known for what others
/// use there would be stolen, all of them.
#[test]
fn on_other_cpus_everything_is_found_out_again() {
    let (_root, hierarchies, mut host) = work();
    let (scope, controls) = (Scope::parse(&["cgroup:/work"]).unwrap(), Controls::none(false));
    let mut governor = ScopeGovernor::new(None, Vec::new());
    let mut followed = |cpus: &str| {
        host.groups[1].cpuset = Some(cpus.parse().unwrap());
        governor.follow(&scope, &host, &hierarchies, &controls);
        let auto = &governor.at_work.as_ref().unwrap().auto;
        (auto.cpus, auto.within.as_ref().unwrap().to_string(), governor.notes.len())
    };
    assert_eq!(followed("0"), (1.0, "0".to_owned(), 1));
    assert_eq!(followed("0"), (1.0, "0".to_owned(), 1));
    assert_eq!(followed("0-1"), (2.0, "0-1".to_owned(), 2));
}

/// Who waits for a quota looks like one whose CPU is stolen.
#[test]
fn under_a_quota_that_somebody_sets_everything_is_found_out_again() {
    let (root, hierarchies, host) = work();
    let (scope, controls) = (Scope::parse(&["cgroup:/work"]).unwrap(), Controls::none(false));
    let mut governor = ScopeGovernor::new(None, Vec::new());
    let followed = |governor: &mut ScopeGovernor, quota: &str| {
        fs::write(root.path().join("work/cpu.max"), format!("{quota}\n")).unwrap();
        governor.follow(&scope, &host, &hierarchies, &controls);
        let at_work = governor.at_work.as_ref().unwrap();
        (at_work.auto.cpus, at_work.group.original.pct(), governor.notes.len())
    };
    assert_eq!(followed(&mut governor, "max 100000"), (2.0, None, 1));
    assert_eq!(followed(&mut governor, "max 100000"), (2.0, None, 1));
    assert_eq!(followed(&mut governor, "50000 100000"), (0.5, Some(50.0), 2));
    // One of its own is there.
    governor.at_work.as_mut().unwrap().group.in_force = Some(CpuQuota::UNLIMITED);
    assert_eq!(followed(&mut governor, "20000 100000"), (0.5, Some(50.0), 2));
}

/// What makes this share of a CPU the limit.
fn wants(share: f64) -> Governor {
    let known = Some(Threshold::Window { window_s: 10.0, share });
    Governor::new(Rules { known, margin: 0.0, ..Rules::default() })
}

/// One that wants 20 % for a cgroup that was found without a limit, and whose files are here.
fn governor_of_20_percent(cpu: Hierarchy) -> ScopeGovernor {
    let mut auto = Auto::new((1.0, None), PERIOD, None, Purpose::default()).unwrap();
    auto.governor = wants(0.2);
    let group = Group {
        target: crate::testing::group("/work"),
        counted: Counted::default(),
        inode: 1,
        cpu,
        original: CpuQuota::UNLIMITED,
        in_force: None,
        journaled: false,
        failed: 0,
    };
    let at_work = AtWork { told: told(&auto), auto, group, beside: None };
    ScopeGovernor { at_work: Some(at_work), ..ScopeGovernor::default() }
}

#[test]
fn a_quota_that_was_set_since_the_last_look_is_not_exceeded() {
    let (root, hierarchies, _) = work();
    let mut governor = governor_of_20_percent(hierarchies.cpu.unwrap());
    let mut written = |quota: &str| {
        fs::write(root.path().join("work/cpu.max"), format!("{quota}\n")).unwrap();
        let mut written = 0;
        std::thread::sleep(LEAST);
        governor.tick(Duration::ZERO, &mut |changes| {
            written += changes.len();
            SetReport::default()
        });
        written
    };
    assert_eq!(["10000 100000", "10000 100000", "max 100000"].map(&mut written), [0, 0, 1]);
}

/// Who passes through the cgroup for a moment makes it not the scope's own.
#[test]
fn a_limit_that_was_not_set_is_not_shown_as_in_force_and_set_again() {
    let quota = CpuQuota { quota_usec: Limit::Value(20_000), ..CpuQuota::UNLIMITED };
    let (_root, hierarchies, _) = work();
    let mut governor = governor_of_20_percent(hierarchies.cpu.unwrap());
    let target = Target::Group(governor.at_work.as_ref().unwrap().group.target.clone());
    let (to, knob) = (Setting::Quota(quota), Knob::Quota);
    let report = |verdict: &Outcome| {
        let (target, to, verdict) = (target.clone(), to.clone(), verdict.clone());
        SetReport { changes: vec![ChangeOutcome { target, knob, to, verdict }], ..SetReport::default() }
    };
    let (refused, unchanged) = (Outcome::Refused("outside the scope".into()), Outcome::Unchanged);
    let tick = |governor: &mut ScopeGovernor, verdict: &Outcome| {
        std::thread::sleep(LEAST);
        governor.tick(Duration::ZERO, &mut |_| report(verdict));
        governor.standing().limit_pct
    };
    assert_eq!(tick(&mut governor, &unchanged), Some(20.0));
    governor.learn(&Plan::default(), &report(&refused));
    assert_eq!((governor.standing().limit_pct, governor.change().is_none()), (None, true));
    assert_eq!((tick(&mut governor, &refused), governor.left.is_none()), (None, true));
    assert_eq!(tick(&mut governor, &unchanged), Some(20.0));
    // The same where another limit was to be set.
    for (share, verdict, limit_pct) in [(0.3, &refused, None), (0.2, &unchanged, Some(20.0))] {
        governor.at_work.as_mut().unwrap().auto.governor = wants(share);
        assert_eq!(tick(&mut governor, verdict), limit_pct);
    }
}
