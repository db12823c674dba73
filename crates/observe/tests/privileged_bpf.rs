//! Sampling by BPF next to sampling by `/proc` on the running kernel: the same tasks with the same counters; threads that
//! come and go between samples; and what happens where BPF cannot be had.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_base::{Sample, TaskId, TaskSample};
use evenkeel_bpf::load::kernel_types;
use evenkeel_bpf::task::{Room, TaskProbe};
use evenkeel_linux::mountinfo::Hierarchies;
use evenkeel_linux::testing::{TestCgroup, TestChild, comm, schedstat, until};
use evenkeel_linux::{Root, pid_stat};
use evenkeel_observe::{Detail, Endpoints, Observer, ObserverOptions, Sampler, Sampling, Select};

fn start(command: &str, args: &[&str]) -> TestChild {
    TestChild(Command::new(command).args(args).stdin(Stdio::null()).spawn().unwrap())
}

fn sampler(sampling: Sampling) -> Sampler {
    let sampler = Sampler::open(&Root::host(), sampling).unwrap();
    assert_eq!(sampler.sampling(), sampling);
    sampler
}

fn take(sampler: &mut Sampler) -> BTreeMap<TaskId, TaskSample> {
    let sample = sampler.sample(&Select::All, &Select::All).unwrap();
    assert!(sample.tasks.is_sorted_by(|a, b| a.id < b.id), "ordered, each once");
    let whole = |task: &&TaskSample| {
        let known = task.waited_ns.is_some()
            && task.timeslices.is_some()
            && task.voluntary.is_some()
            && task.involuntary.is_some();
        // Of a task that ends while /proc is read some files are there and others no longer.
        assert!(known || !id_is_there(task.id), "{task:?} is there, with a counter unread");
        known
    };
    sample.tasks.iter().filter(whole).map(|task| (task.id, *task)).collect()
}

/// Counters that only grow.
fn counters(task: &TaskSample) -> [u64; 5] {
    [
        task.ran_ns,
        task.waited_ns.unwrap(),
        task.timeslices.unwrap(),
        task.voluntary.unwrap(),
        task.involuntary.unwrap(),
    ]
}

#[test]
fn both_ways_give_the_same_tasks_counters_and_rates() {
    let _spinning = start("sh", &["-c", "while :; do :; done"]);
    let _switching = start("sh", &["-c", "while :; do sleep 0.01; done"]);
    let _sleeping = start("sleep", &["1000"]);
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    let threads: Vec<_> = (0..5)
        .map(|_| {
            let wait = wait.clone();
            std::thread::spawn(move || {
                let _ = wait.lock().unwrap().recv();
            })
        })
        .collect();
    let (mut proc, mut bpf) = (sampler(Sampling::Proc), sampler(Sampling::Bpf));
    // What /proc says just before and just after the pass encloses what the pass says: nothing depends on time.
    let mut rounds = Vec::new();
    for _ in 0..2 {
        let before = take(&mut proc);
        let pass = take(&mut bpf);
        let after = take(&mut proc);
        let mut compared = 0;
        for (id, early) in &before {
            let Some(late) = after.get(id) else { continue };
            if is_hidden(id.tgid) {
                continue;
            }
            let seen =
                pass.get(id).unwrap_or_else(|| panic!("{id:?}: by /proc before and after, not by BPF"));
            // `/proc` adds a wait when it ends.
            let still_waits = seen.timeslices == late.timeslices;
            for (n, ((early, seen), late)) in
                counters(early).iter().zip(counters(seen)).zip(counters(late)).enumerate()
            {
                let goes_on = n == 1 && still_waits;
                let fits = *early <= seen && (seen <= late || goes_on);
                assert!(fits, "{id:?} counter {n}: {early} {seen} {late}");
            }
            if early.timeslices == late.timeslices && early.cpu == late.cpu && early.ran_ns == late.ran_ns {
                assert_eq!(seen.cpu, late.cpu, "{id:?}");
            }
            compared += 1;
        }
        for id in pass.keys() {
            // Somebody may have been born after the first and gone before the last.
            let known = before.contains_key(id) || after.contains_key(id);
            assert!(known || pass.len() > 20 && !id_is_there(*id), "{id:?}: only by BPF");
        }
        assert!(compared > 30, "{compared} tasks compared");
        rounds.push((before, pass, after));
        std::thread::sleep(Duration::from_millis(700));
    }
    // The same for what was used over the interval.
    let [(before0, pass0, after0), (before1, pass1, after1)] = &rounds[..] else { panic!() };
    let mut ran = 0;
    for (id, seen) in pass1 {
        let maps = [before0, pass0, after0, before1, after1];
        let Some(old) = maps.iter().map(|map| map.get(id)).collect::<Option<Vec<_>>>() else { continue };
        let used = seen.ran_ns - old[1].ran_ns;
        let (least, most) = (old[3].ran_ns.saturating_sub(old[2].ran_ns), old[4].ran_ns - old[0].ran_ns);
        assert!(least <= used && used <= most, "{id:?}: {least} {used} {most}");
        ran += u64::from(used > 0);
    }
    assert!(ran >= 2, "{ran} tasks ran");
    drop(end);
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Some sandboxes hide their first process even from root: its namespaces cannot be read, and no task iterator meets it.
fn is_hidden(tgid: u32) -> bool {
    let error = std::fs::read_link(format!("/proc/{tgid}/ns/pid")).err();
    tgid == 1 && error.is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

fn id_is_there(id: TaskId) -> bool {
    std::path::Path::new(&format!("/proc/{}/task/{}", id.tgid, id.tid)).exists()
}

fn observer(sampling: Sampling) -> Observer {
    let options = ObserverOptions { sampling, runtimes: Endpoints::none(), ..ObserverOptions::default() };
    Observer::new(&Root::host(), options).unwrap()
}

#[test]
fn both_ways_tell_the_same_of_a_task_renamed_moved_and_rescheduled() {
    let group = TestGroup::new("facts");
    let mut child = TestChild(
        Command::new("sh").args(["-c", "read go; exec sleep 1000"]).stdin(Stdio::piped()).spawn().unwrap(),
    );
    let pid = child.0.id();
    let mut ways = [observer(Sampling::Proc), observer(Sampling::Bpf)];
    let detail = Detail::Processes([pid].into());
    let see = |observer: &mut Observer| {
        let before = observer.sample().unwrap();
        let after = observer.sample().unwrap();
        let seen = observer.observe(&before, &after, &detail).unwrap();
        let task = seen.tasks.iter().find(|task| task.id.tgid == pid).unwrap().clone();
        let path = seen.group_of(&task).map(|group| group.path.clone());
        (task.id, task.comm, task.ppid, task.kernel_thread, task.affinity, task.sched, path)
    };
    let [a, b] = &mut ways;
    let [first, second] = [see(a), see(b)];
    assert_eq!(first, second);
    assert_eq!(first.1, "sh");
    std::io::Write::write_all(child.0.stdin.as_mut().unwrap(), b"go\n").unwrap();
    until("it is another program", || comm(pid) == "sleep");
    group.add(pid);
    let attr = evenkeel_base::SchedAttr {
        policy: evenkeel_base::SchedPolicy::Batch,
        nice: evenkeel_base::Nice::new(7),
        slice_ns: evenkeel_linux::sys::default_slice_ns().map(|_| 20_000_000),
        ..evenkeel_base::SchedAttr::DEFAULT
    };
    evenkeel_linux::sys::sched_setattr(pid, &evenkeel_linux::sys::RawSchedAttr::encode(&attr)).unwrap();
    let now = see(b);
    assert_eq!((now.1.as_str(), now.5, now.6.as_deref()), ("sleep", Some(attr), Some(group.path())));
    // By /proc a sleeping task's name and group are read again only now and then; a new observer reads all.
    assert_eq!(see(&mut observer(Sampling::Proc)), now);
}

/// A group of the test's own in the cpu hierarchy and, where usage is counted elsewhere, there, too.
struct TestGroup {
    groups: Vec<TestCgroup>,
    usage: PathBuf,
}

impl TestGroup {
    fn new(name: &str) -> Self {
        let found = Hierarchies::read(&Root::host()).unwrap();
        let cpu = found.cpu.expect("a cpu controller");
        let mut groups = vec![TestCgroup::on(&cpu, &format!("bpf-{name}")).unwrap()];
        if cpu.v2 {
            let usage = groups[0].dir().join("cpu.stat");
            return Self { groups, usage };
        }
        let cpuacct = found.cpuacct.expect("cpuacct is not mounted: nothing to compare with");
        if cpuacct.mount_point != cpu.mount_point {
            groups.push(TestCgroup::on(&cpuacct, &format!("bpf-{name}")).unwrap());
        }
        let usage = groups[groups.len() - 1].dir().join("cpuacct.usage");
        Self { groups, usage }
    }

    fn path(&self) -> &str {
        self.groups[0].path()
    }

    fn add(&self, pid: u32) {
        self.groups.iter().for_each(|group| group.add(pid).unwrap());
    }

    /// `sh -c SCRIPT` that waits for a line on its input, put into the group, then let go.
    fn shell(&self, script: &str) -> TestChild {
        let mut child = Command::new("sh")
            .args(["-c", &format!("read go; {script}")])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        self.add(child.id());
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"go\n").unwrap();
        TestChild(child)
    }

    /// Its own account, nanoseconds.
    fn usage_ns(&self) -> u64 {
        let text = std::fs::read_to_string(&self.usage).unwrap();
        match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
            Some(usec) => usec.parse::<u64>().unwrap() * 1000,
            None => text.trim().parse().unwrap(),
        }
    }
}

/// Forks and reaps as fast as it can: each child burns a little, too.
const FORKS: &str = "n=0; while :; do (i=0; while [ $i -lt 40 ]; do i=$((i+1)); done); done";

#[test]
fn living_and_ended_tasks_together_are_what_the_group_counts() {
    let group = TestGroup::new("ended");
    let mut observer = observer(Sampling::Bpf);
    let take = |observer: &mut Observer| -> (u64, Sample, u64) {
        let before = group.usage_ns();
        let sample = observer.sample().unwrap();
        (before, sample, group.usage_ns())
    };
    let _forking = group.shell(FORKS);
    let _forking_too = group.shell(FORKS);
    std::thread::sleep(Duration::from_millis(300));
    let mut rows = Vec::new();
    let mut first = take(&mut observer);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(900));
        let last = take(&mut observer);
        let seen = observer.observe(&first.1, &last.1, &Detail::None).unwrap();
        let at = seen.groups.iter().position(|g| g.path == group.path()).expect("its group") as u32;
        let living: f64 =
            seen.tasks.iter().filter(|task| task.group == Some(at)).map(|task| task.cpu_pct).sum();
        let ended = seen.exited.iter().find(|exited| exited.group == Some(at)).expect("tasks that ended");
        let ns = |pct: f64| pct / 100.0 * seen.interval_s * 1e9;
        // The group's own counter just outside and just inside of both passes encloses the truth.
        let least = last.0.saturating_sub(first.2) as f64;
        let most = (last.2 - first.0) as f64;
        let sum = ns(living + ended.cpu_pct);
        rows.push(format!(
            "living {:.1} ms, ended {:.1} ms ({:.0}/s), together {:.1} ms; the group's account {:.1} to {:.1} ms",
            ns(living) / 1e6,
            ns(ended.cpu_pct) / 1e6,
            ended.tasks_per_s,
            sum / 1e6,
            least / 1e6,
            most / 1e6,
        ));
        println!("{}", rows.last().unwrap());
        // Much of it is of who ended: how much more than of the two shells depends on how long a fork takes here.
        assert!(ended.tasks_per_s > 20.0 && ended.cpu_pct > 0.2 * living, "{rows:?}");
        assert!(sum >= 0.99 * least && sum <= 1.01 * most, "{rows:?}");
        assert!(ended.wait_pct >= 0.0);
        first = last;
    }
    assert_eq!(observer.take_note(), None);
}

/// It is read as living, and reaped before the pass is over: passes without a break hit upon that soon.
#[test]
fn who_ends_during_a_pass_is_counted_once() {
    let group = TestGroup::new("pass");
    let mut observer = observer(Sampling::Bpf);
    let each = "while :; do (i=0; while [ $i -lt 25000 ]; do i=$((i+1)); done); done";
    let _ending = [group.shell(each), group.shell(each)];
    let mut before = observer.sample().unwrap();
    let (used_before, began_ns) = (group.usage_ns(), before.monotonic_ns);
    let (mut most_ms, mut ended_ms, mut ends) = (0.0_f64, 0.0, 0.0);
    while before.monotonic_ns - began_ns < 6_000_000_000 {
        let after = observer.sample().unwrap();
        let seen = observer.observe(&before, &after, &Detail::None).unwrap();
        before = after;
        let at = seen.groups.iter().position(|g| g.path == group.path()).expect("its group") as u32;
        let Some(ended) = seen.exited.iter().find(|exited| exited.group == Some(at)) else { continue };
        let ms = ended.cpu_pct / 100.0 * seen.interval_s * 1e3;
        ends += ended.tasks_per_s * seen.interval_s;
        ended_ms += ms;
        // Two shells have no more than two CPUs.
        most_ms = most_ms.max(ms - 2e3 * seen.interval_s);
    }
    let life_ms = (group.usage_ns() - used_before) as f64 / 1e6 / ends;
    let words = format!(
        "{ends:.0} ends after {life_ms:.1} ms each; beyond two CPUs {most_ms:.1} ms; {ended_ms:.1} ms in all"
    );
    println!("{words}");
    // Of who runs it is known at each tick of the kernel only what was used.
    assert!(ends > 40.0 && most_ms < 0.6 * life_ms, "{words}");
}

#[test]
fn threads_and_whole_processes_between_two_samples_are_counted_with_what_they_ran_in_it() {
    let group = TestGroup::new("between");
    let mut observer = observer(Sampling::Bpf);
    // One lives when the first sample is taken and dies before the second: only its share of the interval counts.
    let old = group.shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; read never");
    let ran = |pid: u32| schedstat(pid)[0];
    until("it has computed and waits", || asleep(old.id()) && ran(old.id()) >= 5_000_000);
    let used_before = ran(old.id());
    let before = observer.sample().unwrap();
    drop(old);
    let mut short = group.shell("for n in 1 2 3 4 5 6 7 8 9 10; do (:); done");
    short.0.wait().unwrap();
    // Freed a grace period after they were reaped; counted from the moment they were.
    let after = observer.sample().unwrap();
    let seen = observer.observe(&before, &after, &Detail::None).unwrap();
    let at = seen.groups.iter().position(|g| g.path == group.path()).expect("its group") as u32;
    let ended = seen.exited.iter().find(|exited| exited.group == Some(at)).expect("tasks that ended");
    let used = ended.cpu_pct / 100.0 * seen.interval_s * 1e9;
    let sums = |sample: &Sample| {
        sample.exited.iter().find(|sums| sums.path.as_deref() == Some(group.path())).map(|sums| sums.ran_ns)
    };
    let whole = sums(&after).unwrap() - sums(&before).unwrap_or(0);
    assert!(whole >= used_before, "{whole} {used_before}");
    // What it had used before is not in it; its death and eleven short lives are.
    assert!(
        used > 0.0 && (used - (whole - used_before) as f64).abs() < 1000.0,
        "{used} {whole} {used_before}"
    );
}

fn asleep(pid: u32) -> bool {
    pid_stat::state(&std::fs::read(format!("/proc/{pid}/stat")).unwrap()) == Some('S')
}

#[test]
fn sums_without_room_are_counted_as_lost() {
    let mut probe = TaskProbe::load(&kernel_types().unwrap(), Some(Room { exiting: 64, groups: 1 })).unwrap();
    let groups = [TestGroup::new("lost-a"), TestGroup::new("lost-b"), TestGroup::new("lost-c")];
    // A hash of one entry may hold a few more; three groups and everybody else's are beyond.
    until("something is lost", || {
        for group in &groups {
            group.shell("for n in 1 2 3 4 5; do (:); done").wait().unwrap();
        }
        probe.read(|_| ()).unwrap();
        probe.lost() > 0
    });
    let counted: u64 = probe.exited().unwrap().iter().map(|sums| sums.tasks).sum();
    println!("{} lost, {counted} counted", probe.lost());
}

#[test]
fn where_bpf_cannot_be_had_proc_is_read_and_one_line_says_why() {
    let exe = std::env::current_exe().unwrap().display().to_string();
    let run = |before: &str, wanted: &str| {
        let script = format!("{before} {exe} --exact without_bpf --ignored --nocapture");
        let output = Command::new("sh").args(["-c", &script]).env("WANTED", wanted).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{before}: {text}{errors}");
    };
    run("exec setpriv --bounding-set=-all --inh-caps=-all", "CAP_BPF");
    run("exec unshare --mount sh -c 'mount -t tmpfs none /sys/kernel/btf && exec \"$@\"' sh", "no BTF");
    run("exec unshare --pid --fork --mount-proc", "pid namespace");
}

#[test]
#[ignore = "run by the test above where BPF cannot be had"]
fn without_bpf() {
    let wanted = std::env::var("WANTED").unwrap();
    let mut sampler = Sampler::open(&Root::host(), Sampling::Auto).unwrap();
    assert_eq!(sampler.sampling(), Sampling::Proc);
    let note = sampler.take_note().expect("a note");
    assert!(note.contains(&wanted) && note.lines().count() == 1, "{note}");
    println!("{note}");
    assert_eq!(sampler.take_note(), None);
    let tasks = sampler.sample(&Select::All, &Select::None).unwrap().tasks;
    assert!(tasks.iter().any(|task| task.id.tgid == std::process::id()));
    let refused = Sampler::open(&Root::host(), Sampling::Bpf).unwrap_err().to_string();
    assert!(refused.contains(&wanted), "{refused}");
}
