//! Machines of a real libvirt: named as it names them, shares and pins changed through its own interface, what an administrator sets
//! with `virsh` meanwhile left alone, and everything as it was afterwards. Needs root, qemu, and Debian's libvirt-daemon and
//! libvirt-clients.

mod libvirt;
mod scene;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenkeel_actuate::owner::Run;
use evenkeel_actuate::{Actuator, Kernel, Linux, Options, Verdict};
use evenkeel_base::{Change, CpuSet, Plan, Setting, Target, TaskId};
use evenkeel_linux::testing::awaited;
use libvirt::{Libvirt, Machine, Thread};
use scene::{Agent, Ended, turn, until};
use serde_json::Value;

/// The binary with a state directory, which finds this libvirt.
fn evenkeel(libvirt: &Libvirt, state: &Path, args: &[&str]) -> Command {
    let mut command = scene::evenkeel(state, args);
    command.env("LIBVIRT_DEFAULT_URI", libvirt.uri());
    command
}

#[track_caller]
fn run(libvirt: &Libvirt, state: &Path, args: &[&str]) -> Ended {
    scene::end(&mut evenkeel(libvirt, state, args))
}

/// What `restore` did.
#[track_caller]
fn restored(libvirt: &Libvirt, state: &Path) -> Vec<(String, String)> {
    listed(&run(libvirt, state, &["restore", "-o", "json"]).json())
}

/// Outcome, and group or name, of each item of `restore`'s document.
fn listed(document: &Value) -> Vec<(String, String)> {
    let words = |item: &Value, field: &str| item[field].as_str().unwrap_or_default().to_owned();
    let items = document["items"].as_array().unwrap().iter();
    items.map(|item| (words(item, "outcome"), words(item, "group") + &words(item, "comm"))).collect()
}

/// Everything there is to know of a machine's sharing: what libvirt says, and what the files hold.
fn state(machine: &Machine<'_>) -> impl PartialEq + std::fmt::Debug + use<> {
    let pins = [Thread::Vcpu, Thread::Io].map(|thread| machine.pinned(thread));
    (machine.schedinfo(), pins, machine.files())
}

#[test]
fn machines_are_known_by_their_names() {
    let _turn = turn();
    let libvirt = Libvirt::shared();
    // Not allowed in a name of systemd's: the machine's cgroup has it without.
    let web = libvirt.machine("ek_web", None);
    let dir = tempfile::tempdir().unwrap();
    let say = |args: &[&str]| run(libvirt, dir.path(), args).json();
    let scope = web.scope();

    let ps = say(&["ps", "--by", "vm", "--interval", "300ms", "-o", "json"]);
    let vms: Vec<&Value> = ps["vms"].as_array().unwrap().iter().filter(|vm| vm["name"] == web.name).collect();
    assert_eq!((vms.len(), &vms[0]["pid"]), (1, &web.pid().into()), "{ps:#}");
    for source in ["proc", "bpf"] {
        let why = say(&["why", &scope, "--for", "1s", "--source", source, "-o", "json"]);
        assert_eq!((&why["vm"]["vcpus"], &why["vm"]["steal_clock"]), (&2.into(), &false.into()), "{why:#}");
        assert!(why["ran_s"].as_f64().unwrap() > 0.0, "{why:#}");
    }
    let alone = say(&["ps", "--scope", &scope, "--interval", "300ms", "-o", "json"]);
    let tasks = alone["tasks"].as_array().unwrap();
    assert!(!tasks.is_empty() && tasks.iter().all(|task| task["vm"] == web.name.as_str()), "{alone:#}");
    let plan = run(libvirt, dir.path(), &["plan", "--scope", &scope, "--lever", "placement+nice"]).stdout;
    assert!(plan.contains("CPU 0/TCG"), "{plan}");
}

/// A promise for the first of two machines on one CPU, kept in the background.
fn promise(libvirt: &Libvirt, dir: &Path, web: &Machine<'_>, batch: &Machine<'_>) -> Agent {
    let promised = format!("[[guarantee]]\nscope = \"{}\"\ncpu = \"60%\"\n", web.scope());
    let config = scene::configured(dir, &promised);
    let scopes = [web.scope(), batch.scope()];
    let args = [
        ["--config", &config, "run", "--guarantees-only"],
        ["--scope", &scopes[0], "--scope", &scopes[1]],
        ["--for", "300s", "-o", "json"],
    ]
    .concat();
    Agent::start(evenkeel(libvirt, dir, &args), dir)
}

/// Ends a run, which puts back everything that is still its own, and names so many values that are not; its words. Whether the promise was
/// kept is not judged here: others may take the CPU.
#[track_caller]
fn end(mut agent: Agent, conflicts: usize) -> String {
    let output = agent.end_by(rustix::process::Signal::TERM);
    let document = output.document();
    let restored = &document["restored"];
    assert_eq!([&restored["failed"], &restored["conflicts"]], [0, conflicts], "{document:#}");
    output.stderr
}

#[test]
fn shares_are_changed_through_libvirt_and_left_to_its_administrator() {
    let _turn = turn();
    let libvirt = Libvirt::shared();
    let (web, batch) = (libvirt.machine("web", Some("0")), libvirt.machine("batch", Some("0")));
    let dir = tempfile::tempdir().unwrap();
    let both = || (state(&web), state(&batch));
    let before = both();
    let (web_found, batch_found) = (web.shares(), batch.shares());
    let changed = || web.shares() > web_found && batch.shares() < batch_found;
    let promise = || promise(libvirt, dir.path(), &web, &batch);

    // libvirt knows what is in the files while a promise is kept, and everything goes back at the end.
    let agent = promise();
    until("both shares are changed", changed);
    for machine in [&web, &batch] {
        until("libvirt says what the file holds", || machine.shares() == machine.weight());
    }
    end(agent, 0);
    assert_eq!(both(), before);

    // And after a kill.
    let mut agent = promise();
    until("both shares are changed", changed);
    agent.kill();
    assert!(changed() && web.shares() == web.weight(), "a kill leaves them in force");
    let items = restored(libvirt, dir.path());
    for machine in [&web, &batch] {
        assert!(items.contains(&("put back".to_owned(), machine.group())), "{items:?}");
    }
    assert_eq!(both(), before);

    // What an administrator sets stays, and is reported. What libvirt takes back is promised again.
    let agent = promise();
    until("both shares are changed", changed);
    let other = batch_found / 2 + 7;
    batch.set_shares(other);
    web.set_shares(web_found);
    until("the reset is noticed", || agent.words().contains("as well; the promised one stands again"));
    until("the promise stands again", || web.shares() > web_found);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((batch.shares(), batch.weight()), (other, other), "{}", agent.words());
    let words = end(agent, 1);
    assert!(words.contains(&format!("somebody else set weight {other}")), "{words}");
    assert_eq!((batch.shares(), web.shares()), (other, web_found));
    batch.set_shares(batch_found);
    assert_eq!(both(), before);

    // So it does where a killed run left its changes.
    let mut agent = promise();
    until("both shares are changed", changed);
    agent.kill();
    batch.set_shares(other);
    let output = run(libvirt, dir.path(), &["restore", "-o", "json"]).with(1);
    let items = listed(&output.document());
    for (outcome, machine) in [("conflict", &batch), ("put back", &web)] {
        assert!(items.contains(&(outcome.to_owned(), machine.group())), "{items:?}");
    }
    assert_eq!((batch.shares(), web.shares()), (other, web_found));
    batch.set_shares(batch_found);
    assert_eq!(both(), before);
}

#[test]
fn a_machine_that_ends_while_it_is_changed_is_gone() {
    let _turn = turn();
    let libvirt = Libvirt::shared();
    let (web, batch) = (libvirt.machine("web", Some("0")), libvirt.machine("batch", Some("0")));
    let dir = tempfile::tempdir().unwrap();
    let (web_found, batch_found) = (web.shares(), batch.shares());
    let promise = || promise(libvirt, dir.path(), &web, &batch);

    // Started again, it has another number and cgroup: the promise is about its name.
    let agent = promise();
    until("its share is changed", || web.shares() > web_found);
    let group = web.group();
    libvirt.virsh(&["destroy", &web.name]);
    libvirt.virsh(&["start", &web.name]);
    assert_ne!(web.group(), group);
    until("the new one's is changed", || web.shares() > web_found);
    end(agent, 0);
    assert_eq!((web.shares(), batch.shares()), (web_found, batch_found));

    let mut agent = promise();
    until("both shares are changed", || web.shares() > web_found && batch.shares() < batch_found);
    agent.kill();
    let group = web.group();
    libvirt.virsh(&["destroy", &web.name]);
    let items = restored(libvirt, dir.path());
    assert!(items.contains(&("gone".to_owned(), group)), "{items:?}");
    assert!(items.contains(&("put back".to_owned(), batch.group())), "{items:?}");
    assert!(items.iter().all(|(outcome, _)| outcome != "conflict" && outcome != "failed"), "{items:?}");
    assert_eq!(batch.shares(), batch_found);
}

/// `virsh` for an actuator in this process.
struct Virsh(String);

impl Run for Virsh {
    fn has(&self, program: &str) -> bool {
        program == "virsh"
    }

    fn run(&self, program: &str, args: &[String]) -> Result<(), String> {
        let output = Command::new(program).args(["--connect", &self.0]).args(args).output().unwrap();
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}

/// An actuator, and what pins a thread with it.
struct Pinner(Actuator<Linux>);

impl Pinner {
    fn open(libvirt: &Libvirt, state: &Path) -> Self {
        let kernel = Linux::with_programs(Box::new(Virsh(libvirt.uri()))).unwrap();
        Self(Actuator::open(kernel, state, Options::default()).unwrap().0)
    }

    fn id(&mut self, tid: u32) -> TaskId {
        self.0.kernel().identity(tid).unwrap().id
    }

    fn pin(&mut self, tids: &[u32], cpu: u32) -> Vec<Verdict> {
        let to = Setting::Affinity(CpuSet::single(cpu));
        let change = |tid: &u32| Change {
            target: Target::Task(self.id(*tid)),
            to: to.clone(),
            why: "a test".to_owned(),
        };
        let plan = Plan { changes: tids.iter().map(change).collect(), ..Plan::default() };
        self.0.set(&plan, &|_| true).changes.into_iter().map(|change| change.verdict).collect()
    }
}

fn affinity(tid: u32) -> String {
    evenkeel_linux::sys::getaffinity(tid).unwrap().to_string()
}

#[test]
fn threads_are_pinned_through_libvirt_and_left_to_its_administrator() {
    let _turn = turn();
    let libvirt = Libvirt::shared();
    let web = libvirt.machine("web", None);
    let dir = tempfile::tempdir().unwrap();
    let before = state(&web);
    let threads = [Thread::Vcpu, Thread::Io];
    let tids = threads.map(|thread| web.tid(thread));
    let found = tids.map(affinity);
    let is_on = |cpus: &str| {
        for (thread, tid) in threads.into_iter().zip(tids) {
            assert_eq!((web.pinned(thread).as_str(), affinity(tid).as_str()), (cpus, cpus), "{thread:?}");
        }
    };
    let is_found = || {
        assert_eq!(state(&web), before);
        assert_eq!(tids.map(affinity), found);
    };
    let applied = |verdicts: &[Verdict]| {
        assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Applied(_))), "{verdicts:?}");
    };

    // From CPU to CPU, although libvirt narrows a thread's cgroup to the one it is on.
    let mut pinner = Pinner::open(libvirt, dir.path());
    for cpu in [1, 0, 1] {
        applied(&pinner.pin(&tids, cpu));
        is_on(&cpu.to_string());
    }
    let report = pinner.0.close();
    assert!(report.is_clean() && report.put_back.len() == 2, "{report:?}");
    is_found();

    // A kill, and `restore`; the second time without an answer from libvirt, by the kernel alone.
    for answers in [true, false] {
        let mut pinner = Pinner::open(libvirt, dir.path());
        applied(&pinner.pin(&tids, 1));
        drop(pinner);
        is_on("1");
        let mut command = scene::evenkeel(dir.path(), &["restore", "-o", "json"]);
        let nowhere = format!("qemu+unix:///system?socket={}", dir.path().join("nowhere").display());
        command.env("LIBVIRT_DEFAULT_URI", if answers { libvirt.uri() } else { nowhere });
        let document = scene::end(&mut command).json();
        let items = document["items"].as_array().unwrap();
        assert!(items.len() == 2 && items.iter().all(|item| item["outcome"] == "put back"), "{document:#}");
        if !answers {
            assert_eq!((tids.map(affinity), web.pinned(Thread::Vcpu)), (found.clone(), "1".to_owned()));
            for thread in threads {
                web.pin(thread, &found[0]);
            }
        }
        is_found();
    }

    // What an administrator pins stays, whether it is met by a change or at the end.
    for changes in [true, false] {
        let mut pinner = Pinner::open(libvirt, dir.path());
        applied(&pinner.pin(&tids, 1));
        web.pin(Thread::Vcpu, "0");
        if changes {
            let verdicts = pinner.pin(&tids, 1);
            assert!(
                matches!(verdicts.as_slice(), [Verdict::Conflict(_), Verdict::Unchanged]),
                "{verdicts:?}"
            );
        }
        let report = pinner.0.close();
        assert_eq!((report.conflicts.len(), report.put_back.len()), (1, 1), "{report:?}");
        assert_eq!((web.pinned(Thread::Vcpu), affinity(tids[0])), ("0".to_owned(), "0".to_owned()));
        web.pin(Thread::Vcpu, &found[0]);
        is_found();
    }

    // A machine that ends while it is pinned is gone.
    let mut pinner = Pinner::open(libvirt, dir.path());
    applied(&pinner.pin(&tids, 1));
    libvirt.virsh(&["destroy", &web.name]);
    let report = pinner.0.close();
    assert!(report.is_clean() && report.gone.len() == 2, "{report:?}");
}

/// Pins of a trial, by the loop itself.
#[test]
fn a_trial_pins_through_libvirt() {
    let _turn = turn();
    let libvirt = Libvirt::shared();
    // One vCPU more wants to run than there are CPUs: some wait.
    let cpus = evenkeel_linux::sys::usable_cpus().len();
    let machines: Vec<Machine<'_>> =
        (0..=cpus).map(|number| libvirt.machine(&format!("web{number}"), None)).collect();
    let dir = tempfile::tempdir().unwrap();
    let states = || machines.iter().map(state).collect::<Vec<_>>();
    let before = states();
    let config = scene::hurried(dir.path(), "20s");
    let scopes: Vec<String> = machines.iter().map(Machine::scope).collect();
    let mut args = vec!["--config", &config, "run", "--lever", "placement+nice"];
    args.extend(scopes.iter().flat_map(|scope| ["--scope", scope]));
    let is_pinned = || machines.iter().any(|machine| machine.pinned(Thread::Vcpu).len() == 1);
    let mut agent = Agent::start(evenkeel(libvirt, dir.path(), &args), dir.path());
    awaited(60, || {
        assert!(agent.process.try_wait().unwrap().is_none(), "{}", agent.words());
        is_pinned().then_some(()).ok_or_else(|| format!("no vCPU is pinned: {}", agent.words()))
    });
    agent.kill();
    restored(libvirt, dir.path());
    assert_eq!(states(), before);
}
