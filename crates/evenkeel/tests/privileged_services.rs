//! `run --service --background` on this kernel: background work yields by a setting that was proved, newcomers follow, and
//! everything goes back. Needs root.

mod scene;

use evenkeel_base::{CpuQuota, Limit};
use evenkeel_linux::sys::{self, RawSchedAttr};
use evenkeel_linux::testing::awaited;
use scene::{
    Agent, Group, Process, begin, begin_together, configured, hurried, hurried_with, run, snapshot, until,
};

/// Programs of this host that come and go meanwhile decide nothing here: what the guard does with them is tested elsewhere.
const FORGIVING: &str = "[guard]\nwait_floor = 0.3\noutside_cpu_loss = 0.5\n";

/// Loops that take whatever they get, three on each CPU.
fn batch(group: &Group) -> Vec<Process> {
    let cpus = evenkeel_linux::sys::usable_cpus().len();
    let args = ["load", "spin", "--seconds", "600"];
    (0..3 * cpus).map(|_| group.start(env!("CARGO_BIN_EXE_evenkeel"), &args)).collect()
}

/// A service that sleeps and works: bursts of a few milliseconds.
fn service(group: &Group) -> Process {
    let args = ["load", "duty", "--percent", "30", "--period", "10ms", "--kind", "open", "--seconds", "600"];
    group.start(env!("CARGO_BIN_EXE_evenkeel"), &args)
}

/// What the loop says up to the setting that it keeps.
fn words_of_what_is_kept(agent: &Agent) -> String {
    awaited(95, || match agent.words() {
        words if words.contains("* ") => Ok(words),
        words => Err(words),
    })
}

#[test]
fn background_work_yields_and_everything_goes_back() {
    let (_turn, dir) = begin();
    let (api, work) = (Group::new("api"), Group::new("work"));
    work.set_weight(3000, 300);
    let (service, loops) = (service(&api), batch(&work));
    let before = snapshot(&[&api, &work]);
    let config = configured(dir.path(), FORGIVING);
    let (service_scope, work_scope) = (service.scope(), work.scope());
    let args =
        ["run", "--service", &service_scope, "--background", &work_scope, "--for", "100s", "-o", "json"];
    let args = [&args[..], &["--config", &config]].concat();
    let mut agent = Agent::run(dir.path(), &args);
    let words = words_of_what_is_kept(&agent);
    let kept =
        words.lines().find(|line| line.starts_with("* ")).unwrap_or_else(|| panic!("{words}")).to_owned();
    assert!(kept.contains("kept: requests are delayed at least"), "{words}");
    assert_ne!(snapshot(&[&api, &work]), before, "{words}");
    // The service itself is never changed.
    assert_eq!(snapshot(&[&api]).1, before.1[..1].to_vec());
    if kept.contains("idle groups") {
        let idle = || work.files()["cpu.idle"].trim() == "1";
        assert!(idle());
        // As a manager of cgroups writes what was found again.
        std::fs::write(work.dir().join("cpu.idle"), "0").unwrap();
        until("it is idle again", idle);
    }
    // A unit that is restarted has its cgroup made again.
    let in_force = work.files();
    drop(loops);
    until("the cgroup is empty", || work.processes().is_empty());
    std::fs::remove_dir(work.dir()).unwrap();
    std::fs::create_dir(work.dir()).unwrap();
    work.set_weight(3000, 300);
    let _batch = batch(&work);
    until("what was made again is as it was set", || work.files() == in_force);
    let tasks = snapshot(&[&api, &work]).0;
    // In an idle cgroup a service would wait for everybody.
    work.add(service.pid());
    until("the cgroup is as it was", || work.files() == before.1[1]);
    until("it says why", || agent.words().contains("others are in a cgroup of background work"));
    let document = agent.end_by(rustix::process::Signal::INT).json();
    scene::assert_all_back(&document);
    assert_eq!(document["protected"][0]["name"], service_scope, "{document:#}");
    assert_eq!(snapshot(&[&api, &work]), (tasks, before.1));
}

#[test]
#[ignore = "each time the kernel keeps 0.025 % of a CPU as promised (docs/services.md, Limits): for a machine of its own, with --ignored"]
fn a_service_with_a_bound_may_have_a_deadline_and_loses_it_at_the_end() {
    let (_turn, dir) = begin();
    let (api, work) = (Group::new("api"), Group::new("work"));
    work.set_weight(3000, 300);
    let args = ["load", "duty", "--percent", "2", "--period", "10ms", "--kind", "open", "--seconds", "600"];
    let service = api.start(env!("CARGO_BIN_EXE_evenkeel"), &args);
    let _batch = batch(&work);
    let attributes = || -> Vec<(u32, RawSchedAttr)> {
        let tids = evenkeel_linux::process::threads(service.pid()).into_iter();
        tids.map(|tid| (tid, sys::sched_getattr(tid).unwrap())).collect()
    };
    let before = attributes();
    let toml = format!(
        "[guard]\nwait_floor = 0.3\noutside_cpu_loss = 0.5\n[[service]]\nscope = \"{}\"\nwait_p99 = \"1.2ms\"\n",
        api.scope()
    );
    let config = configured(dir.path(), &toml);
    let background = work.scope();
    let args = ["run", "--config", &config, "--background", &background, "--lever", "deadline"];
    // Not allowed, it is not even proposed.
    let plan = |more: &[&str]| run(dir.path(), &[&["plan"], &args[1..], more].concat()).stdout;
    assert!(!plan(&[]).contains("deadline"), "{}", plan(&[]));
    let proposed = plan(&["--allow", "deadline"]);
    assert!(proposed.contains(" of each 1.2 ms"), "{proposed}");
    let args = [&args[..], &["--allow", "deadline", "--for", "100s", "-o", "json"]].concat();
    let mut agent = Agent::run(dir.path(), &args);
    let words = words_of_what_is_kept(&agent);
    assert!(words.contains("* deadline"), "{words}");
    let deadline = evenkeel_base::SchedPolicy::Deadline.raw();
    let in_force: Vec<RawSchedAttr> = attributes().into_iter().map(|(_, attr)| attr).collect();
    let with: Vec<_> = in_force.iter().filter(|attr| attr.policy == deadline).collect();
    assert!(with.len() == 1 && with[0].period == 1_200_000, "{in_force:?}");
    scene::assert_all_back(&agent.end_by(rustix::process::Signal::INT).json());
    assert_eq!(attributes(), before);
}

#[test]
fn background_work_gets_what_services_leave_of_what_a_hypervisor_gives() {
    let (_turn, dir) = begin();
    let (api, work) = (Group::new("given-api"), Group::new("given-work"));
    let _loads = (service(&api), batch(&work));
    let before = (api.files(), work.files());
    let (api_scope, work_scope) = (api.scope(), work.scope());
    let args = ["run", "--service", &api_scope, "--background", &work_scope, "--guarantees-only"];
    // 24 credits an hour: 40 % of a CPU for good.
    let more = ["--cpu-limit", "auto", "--instance", "t3.medium", "--for", "60s", "-o", "json"];
    let mut agent = Agent::run(dir.path(), &[&args[..], &more].concat());
    until("background work is limited", || work.files() != before.1);
    // The record is brought up to date at each observation.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(api.files(), before.0, "the service is not");
    let document = agent.end_by(rustix::process::Signal::INT).json();
    scene::assert_all_back(&document);
    assert_eq!((api.files(), work.files()), before);
    let limit = &document["cpu_limit"];
    assert_eq!(limit["group"], work.path(), "{limit:#}");
    let why = limit["why"].as_str().unwrap();
    assert!(why.contains("40.0 % of a CPU is given for good"), "{why}");
    assert!(limit["limit_pct"].as_f64().is_some_and(|pct| pct < 40.0), "{limit:#}");
}

/// Waits are counted by process: a scope of some of its threads has those of all of them, and not none.
#[test]
fn a_service_of_some_threads_of_a_process_is_not_said_to_wait_for_nothing() {
    let (_turn, dir) = begin();
    let work = Group::new("threads-work");
    let _loads = batch(&work);
    let ends = std::sync::atomic::AtomicBool::new(false);
    let start = std::time::Instant::now();
    let spin = |rest_ms| {
        while !ends.load(std::sync::atomic::Ordering::Relaxed) && start.elapsed().as_secs() < 60 {
            let began = std::time::Instant::now();
            while began.elapsed().as_micros() < 500 {}
            std::thread::sleep(std::time::Duration::from_millis(rest_ms));
        }
    };
    let args = ["run", "--service", "comm:^ek-serves$", "--background", &work.scope(), "--for", "3s"];
    let output = std::thread::scope(|scope| {
        let thread = |name: &str, rest_ms| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn_scoped(scope, move || spin(rest_ms))
                .unwrap();
        };
        thread("ek-serves", 2);
        // One of them waits at any time, whatever the scheduler does.
        (0..=evenkeel_linux::sys::usable_cpus().len()).for_each(|_| thread("ek-other", 0));
        let output = run(dir.path(), &args);
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        output
    });
    let said = &output.stderr;
    assert!(said.contains("waits of comm:^ek-serves$ are those of its whole processes"), "{said}");
    assert!(!said.contains("is delayed 0.00 ms"), "{said}");
}

#[test]
fn who_is_both_is_named_and_nothing_is_changed() {
    let (_turn, dir) = begin_together();
    let group = Group::new("both");
    let loads = batch(&group);
    until("the loads run", || group.processes().len() == loads.len());
    for command in ["run", "plan"] {
        let args = [command, "--service", &loads[0].scope(), "--background", &group.scope()];
        let words = run(dir.path(), &args).with(2).stderr;
        assert!(words.contains(&format!("task {}", loads[0].pid())) && words.contains("too"), "{words}");
    }
}

#[test]
fn a_service_that_is_not_there_yet_is_awaited() {
    let (_turn, dir) = begin_together();
    let work = Group::new("awaits");
    let _loads = batch(&work);
    let (nobody, work_scope) = ("cgroup:/evenkeel-no-such", work.scope());
    let args = ["run", "--service", nobody, "--background", &work_scope, "--for", "3s", "-o", "json"];
    let output = run(dir.path(), &args);
    let document = output.json();
    let words = &output.stderr;
    assert!(words.contains("no task belongs to cgroup:/evenkeel-no-such yet"), "{words}");
    assert!(document["changes"].as_array().unwrap().is_empty(), "{document:#}");
    // Loops that wait for each other are a service for which nothing can be done: nobody else is named who is there.
    let args =
        ["run", "--service", &work_scope, "--service", nobody, "--background", "cgroup:/evenkeel-none"];
    let words = run(dir.path(), &[&args[..], &["--for", "3s"]].concat()).stderr;
    assert!(words.contains("no task belongs to cgroup:/evenkeel-no-such yet: it is waited for"), "{words}");
    let nothing =
        "nothing to do: no task of the scope that may be changed is running (cgroup:/evenkeel-none)";
    assert!(words.contains(nothing), "{words}");
}

/// Background work sleeps: a service's own quota is what is left to do something about.
#[test]
fn a_service_that_its_own_quota_begins_to_hold_back_is_tried_for() {
    let (_turn, dir) = begin();
    let (api, work) = (Group::new("burst-api"), Group::new("burst-work"));
    api.set_quota(&CpuQuota { quota_usec: Limit::Value(30_000), period_usec: 100_000, burst_usec: 0 });
    let (_asleep, _idle) = (api.start("sleep", &["600"]), work.start("sleep", &["600"]));
    let before = api.files();
    let (api_scope, work_scope) = (api.scope(), work.scope());
    let config = hurried(dir.path(), "20s");
    let args = ["run", "--service", &api_scope, "--background", &work_scope, "--lever", "burst"];
    let args = [&args[..], &["--for", "100s", "-o", "json", "--config", &config]].concat();
    let mut agent = Agent::run(dir.path(), &args);
    until("it sees nothing to do", || agent.words().contains("nothing to do: what comes to"));
    let load = |share: &str| {
        let words = format!("load duty --kind open --seconds 600 {share}");
        api.start(env!("CARGO_BIN_EXE_evenkeel"), &words.split(' ').collect::<Vec<_>>())
    };
    // An eighth of a CPU on average, all of it at once: more than the quota of a period.
    let often = load("--percent 12 --period 400ms");
    until("it decides again", || agent.words().contains("trial of kernel default | burst"));
    until("burst is set", || api.files() != before);
    scene::assert_all_back(&agent.end_by(rustix::process::Signal::INT).json());
    assert_eq!(api.files(), before);
    drop(often);
    // In many seconds nothing comes: who looks as long as `run` sees it all the same.
    let _seldom = load("--percent 5 --period 3s --jitter 0");
    let args =
        ["plan", "--service", &api_scope, "--background", &work_scope, "--lever", "burst", "-o", "json"];
    let document = run(dir.path(), &args).json();
    assert_eq!(document["plans"][0]["name"], "burst", "{document:#}");
}

/// A host that names no service, and perhaps background work, leaves nothing to do. Units that begin later have their tier, too.
#[test]
fn tiers_of_the_host_are_awaited_and_units_that_begin_later_join() {
    let (_turn, dir) = begin_together();
    let mut agent = Agent::run(dir.path(), &["run", "--tiers", "auto", "--for", "100s", "-o", "json"]);
    until("there is nothing to do", || agent.words().contains("nothing to do"));
    let work = Group::new("told");
    let _told = work.start("nice", &["-n", "19", "sleep", "600"]);
    let joined = format!("{} is background work from now on: nice 10 or more", work.scope());
    until("it joins", || agent.words().contains(&joined));
    let document = agent.end_by(rustix::process::Signal::INT).json();
    let scope = document["scope"].as_array().unwrap();
    assert!(scope.iter().any(|text| *text == work.scope().as_str()), "{document:#}");
    assert!(document["changes"].as_array().unwrap().is_empty(), "{document:#}");
}

#[test]
fn background_work_moves_aside_for_a_service_and_keeps_its_affinity() {
    let (_turn, dir) = begin();
    let (api, work) = (Group::new("aside-api"), Group::new("aside-work"));
    // It has to sleep often: one that is always behind never wakes.
    let light = ["load", "duty", "--percent", "3", "--period", "1ms", "--kind", "open", "--seconds", "600"];
    let _loads = (api.start(env!("CARGO_BIN_EXE_evenkeel"), &light), batch(&work));
    let before = snapshot(&[&api, &work]);
    let config = hurried_with(dir.path(), "20s", FORGIVING);
    let (api_scope, work_scope) = (api.scope(), work.scope());
    let args = ["run", "--service", &api_scope, "--background", &work_scope, "--lever", "aside"];
    let args = [&args[..], &["--for", "12s", "-o", "json", "--config", &config]].concat();
    let output = Agent::run(dir.path(), &args).end();
    let (document, words) = (output.json(), output.stderr);
    assert!(words.contains("background work was moved aside"), "{words}");
    scene::assert_all_back(&document);
    assert_eq!(snapshot(&[&api, &work]), before);
    let stages = document["stages"].as_array().unwrap();
    assert!(stages.iter().any(|stage| stage["name"] == "trial aside"), "{document:#}");

    // Killed in the middle of a trial, in which tasks are moved half of the time. A pin lasts for microseconds: nobody can wait for one.
    let mut agent = Agent::run(dir.path(), &args);
    until("a trial", || agent.words().contains("trial of"));
    std::thread::sleep(std::time::Duration::from_secs(4));
    agent.kill();
    run(dir.path(), &["restore"]).with(0);
    assert_eq!(snapshot(&[&api, &work]), before);
}
