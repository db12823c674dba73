//! The sampler on the living kernel: tasks and threads as they come, change and go; descriptors; cgroup moves.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use evenkeel_base::TaskId;
use evenkeel_linux::testing::{TestCgroup, TestChild};
use evenkeel_linux::{Root, sys};
use evenkeel_observe::{Detail, Endpoints, Observer, ObserverOptions, Sampler, Select};

fn sleeper() -> TestChild {
    TestChild(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap())
}

fn own_thread() -> u32 {
    let name = std::fs::read_link("/proc/thread-self").unwrap();
    name.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

#[test]
fn tasks_are_seen_when_they_come_and_not_when_they_are_gone() {
    let mut sampler = Sampler::new(&Root::host()).unwrap();
    let sample = |sampler: &mut Sampler, pid: u32| -> Option<TaskId> {
        let sample = sampler.sample(&Select::All, &Select::None).unwrap();
        assert!(sample.tasks.is_sorted_by_key(|task| task.id));
        assert!(sample.tasks.iter().any(|task| task.id.tgid == std::process::id()));
        sample.tasks.iter().find(|task| task.id.tgid == pid).map(|task| task.id)
    };
    sample(&mut sampler, 0);
    let child = sleeper();
    let pid = child.0.id();
    let id = sample(&mut sampler, pid).expect("a new process is seen at once");
    assert_eq!(sample(&mut sampler, pid), Some(id));
    drop(child);
    assert_eq!(sample(&mut sampler, pid), None);
    // Asked for by name it stays gone, too.
    let only = Select::Tasks([id].into());
    assert!(sampler.sample(&only, &Select::None).unwrap().tasks.is_empty());
}

#[test]
fn threads_come_and_go_within_a_process() {
    let mut sampler = Sampler::new(&Root::host()).unwrap();
    let own = Select::Processes([std::process::id()].into());
    let tids = |sampler: &mut Sampler, select: &Select| -> BTreeSet<u32> {
        let sample = sampler.sample(select, &Select::None).unwrap();
        sample
            .tasks
            .iter()
            .filter(|task| task.id.tgid == std::process::id())
            .map(|task| task.id.tid)
            .collect()
    };
    for select in [Select::All, own] {
        let (told, tid) = channel();
        let (end, wait) = channel::<()>();
        tids(&mut sampler, &select);
        let thread = std::thread::spawn(move || {
            told.send(own_thread()).unwrap();
            let _ = wait.recv();
        });
        let tid = tid.recv().unwrap();
        assert!(tids(&mut sampler, &select).contains(&tid), "new thread, {select:?}");
        drop(end);
        thread.join().unwrap();
        // The kernel may take a moment to reap the thread after join returns.
        std::thread::sleep(Duration::from_millis(20));
        assert!(!tids(&mut sampler, &select).contains(&tid), "ended thread, {select:?}");
    }
}

#[test]
fn a_task_that_runs_is_told_from_one_that_sleeps_with_its_attributes() {
    let options =
        ObserverOptions { switches: Select::All, runtimes: Endpoints::none(), ..ObserverOptions::default() };
    let mut observer = Observer::new(&Root::host(), options).unwrap();
    let (sleeping, spinning) =
        (sleeper(), TestChild(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap()));
    let pid = spinning.0.id();
    // What is read back is what was set: class, nice and, where the kernel has them, a slice of its own.
    let default = sys::default_slice_ns();
    let attr = evenkeel_base::SchedAttr {
        policy: evenkeel_base::SchedPolicy::Batch,
        nice: evenkeel_base::Nice::new(3),
        slice_ns: default.map(|_| 20_000_000),
        ..evenkeel_base::SchedAttr::DEFAULT
    };
    sys::sched_setattr(pid, &sys::RawSchedAttr::encode(&attr)).unwrap();
    let before = observer.sample().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let after = observer.sample().unwrap();
    let seen = observer.observe(&before, &after, &Detail::Processes([pid].into())).unwrap();
    let of = |pid: u32| seen.tasks.iter().find(|task| task.id.tgid == pid).unwrap();
    let (busy, idle) = (of(pid), of(sleeping.0.id()));
    // The sleeper may have been starting still.
    assert!(busy.cpu_pct > 0.0 && busy.cpu_pct > 5.0 * idle.cpu_pct, "{busy:?} {idle:?}");
    assert_eq!((busy.comm.as_str(), idle.comm.as_str()), ("sh", "sleep"));
    assert_eq!((busy.sched, idle.sched.is_none()), (Some(attr), true));
    assert_eq!(busy.affinity, sys::getaffinity(pid).ok());
    assert_eq!((busy.ppid, busy.kernel_thread), (std::process::id(), false));
    assert_eq!(seen.group_of(idle).map(|group| group.path.is_empty()), Some(false));
}

#[test]
fn without_descriptors_to_keep_open_the_same_is_seen() {
    // In a process of its own: the limit holds for the whole process.
    let exe = std::env::current_exe().unwrap();
    let script = format!("ulimit -n 40 && exec {} --exact few_descriptors --ignored", exe.display());
    let child = sleeper();
    let output =
        Command::new("sh").args(["-c", &script]).env("SEEN_PID", child.0.id().to_string()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
}

#[test]
#[ignore = "run by the test above with a low limit"]
fn few_descriptors() {
    let pid: u32 = std::env::var("SEEN_PID").unwrap().parse().unwrap();
    let mut sampler = Sampler::new(&Root::host()).unwrap();
    for _ in 0..4 {
        let sample = sampler.sample(&Select::All, &Select::None).unwrap();
        let processes = sample.tasks.iter().map(|task| task.id.tgid).collect::<BTreeSet<_>>();
        assert!(processes.len() > 10 && processes.contains(&pid), "{processes:?}");
    }
}

#[test]
fn a_task_moved_to_another_group_is_found_there() {
    let options = ObserverOptions { runtimes: Endpoints::none(), ..ObserverOptions::default() };
    let mut observer = Observer::new(&Root::host(), options).unwrap();
    let cpu = observer.hierarchies().and_then(|h| h.cpu.clone()).expect("a cpu controller");
    let group = TestCgroup::new("moved").unwrap();
    let child = sleeper();
    observer.sample().unwrap();
    group.add(child.0.id()).unwrap();
    let before = observer.sample().unwrap();
    let after = observer.sample().unwrap();
    let seen = observer.observe(&before, &after, &Detail::None).unwrap();
    let task = seen.tasks.iter().find(|task| task.id.tgid == child.0.id()).unwrap();
    let place = seen.group_of(task).unwrap();
    assert_eq!((place.path.as_str(), place.v2), (group.path(), cpu.v2));
    assert!(
        place.load_weight.is_some() && place.quota.is_some() && place.throttled_pct.is_some(),
        "{place:?}"
    );
    // With cpuacct mounted apart, the task's usage is counted in another group: unknown, not zero.
    let cpuacct = observer.hierarchies().and_then(|h| h.cpuacct.clone());
    let apart = cpuacct.is_some_and(|cpuacct| cpuacct.mount_point != cpu.mount_point);
    assert_eq!(place.cpu_pct.is_none(), apart, "{place:?}");
    drop(child);
    std::thread::sleep(Duration::from_millis(20));
}
