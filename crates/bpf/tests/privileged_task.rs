//! The task iterator on the running kernel.

mod load;

use std::collections::HashSet;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_bpf::load::kernel_types;
use evenkeel_bpf::task::{Room, TaskProbe, TaskRecord};
use evenkeel_linux::testing::awaited;
use load::{Process, turn};

fn pass(probe: &mut TaskProbe) -> Vec<TaskRecord> {
    let mut seen = Vec::new();
    probe.read(|record| seen.push(record)).unwrap();
    seen
}

#[test]
fn every_task_gives_one_record_with_what_proc_says() {
    let mut probe = TaskProbe::load(&kernel_types().unwrap(), None).unwrap();
    let name = "a b) R (c\u{e9}";
    let (told, tid) = std::sync::mpsc::channel();
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        std::fs::write("/proc/thread-self/comm", name).unwrap();
        let link = std::fs::read_link("/proc/thread-self").unwrap();
        told.send(link.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap()).unwrap();
        let _ = wait.recv();
    });
    let tid = tid.recv().unwrap();
    let seen = pass(&mut probe);
    let tids: HashSet<u32> = seen.iter().map(|record| record.tid).collect();
    // An interrupted pass may meet a thread twice; never many.
    assert!(tids.len() * 100 > seen.len() * 99, "{} of {}", tids.len(), seen.len());
    let listed = evenkeel_linux::process::all();
    let missed = listed.iter().filter(|pid| !tids.contains(pid)).count();
    assert!(missed * 10 < listed.len(), "{missed} of {} processes not seen", listed.len());
    let record = seen.iter().find(|record| record.tid == tid).unwrap();
    assert_eq!((record.tgid, record.comm()), (std::process::id(), name.as_bytes()));
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    // Fields are numbered as in proc(5); the state is field 3.
    let field = |n: usize| fields[n - 3].parse::<u64>().unwrap();
    assert_eq!(record.start_ns / 10_000_000, field(22));
    assert_eq!((u64::from(record.ppid), u64::from(record.policy)), (field(4), field(41)));
    assert_eq!(record.nice, fields[19 - 3].parse::<i32>().unwrap());
    assert!(!record.kernel_thread && !record.exiting && record.cpu.is_some());
    let kthreadd = seen.iter().find(|record| record.tid == 2).unwrap();
    assert!(kthreadd.kernel_thread && kthreadd.comm() == b"kthreadd");
    drop(end);
    thread.join().unwrap();
}

#[test]
fn a_thread_that_starves_waits() {
    let _turn = turn();
    let mut probe = TaskProbe::load(&kernel_types().unwrap(), None).unwrap();
    let victim = Process::hog(0);
    let _hog = Process::realtime_hog();
    // Before, the time waited, and after.
    let mut waited = || {
        let began = Instant::now();
        let record = pass(&mut probe).into_iter().find(|record| record.tid == victim.pid()).unwrap();
        (began, record.waited_ns, Instant::now())
    };
    std::thread::sleep(Duration::from_millis(200));
    // Real-time tasks have the CPU for most of a second; hardly a wait ends within this time.
    let (began, before, from) = waited();
    std::thread::sleep(Duration::from_millis(300));
    let (to, after, ended) = waited();
    let waited_ns = (after - before) as f64;
    assert!(waited_ns > 0.8 * (to - from).as_nanos() as f64, "{waited_ns} ns of {:?}", to - from);
    assert!(waited_ns < 1.05 * (ended - began).as_nanos() as f64, "{waited_ns} ns of {:?}", ended - began);
}

/// Numbers of the programs, maps and links a process has descriptors of.
fn held(pid: u32) -> HashSet<(String, u32)> {
    let mut held = HashSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        for line in text.lines() {
            let Some((kind @ ("prog_id" | "map_id" | "link_id"), id)) = line.split_once(':') else {
                continue;
            };
            held.insert((kind.to_owned(), id.trim().parse().unwrap()));
        }
    }
    held
}

/// Those still in the kernel, as bpftool would list them.
fn remaining(ids: &HashSet<(String, u32)>) -> Vec<(String, u32)> {
    let programs = aya::programs::loaded_programs().filter_map(|info| Some(("prog_id", info.ok()?.id())));
    let maps = aya::maps::loaded_maps().filter_map(|info| Some(("map_id", info.ok()?.id())));
    let links = aya::programs::loaded_links().filter_map(|info| Some(("link_id", info.ok()?.id())));
    let there: HashSet<(String, u32)> =
        programs.chain(maps).chain(links).map(|(kind, id)| (kind.to_owned(), id)).collect();
    ids.iter().filter(|id| there.contains(id)).cloned().collect()
}

/// The kernel frees them a grace period after the last descriptor.
fn assert_gone(ids: &HashSet<(String, u32)>) {
    awaited(20, || {
        let remaining = remaining(ids);
        remaining.is_empty().then_some(()).ok_or_else(|| format!("left behind: {remaining:?}"))
    });
}

/// Tests here look at this process's descriptors: one at a time.
static DESCRIPTORS: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn twenty_loads_and_unloads_leave_nothing() {
    let _one = DESCRIPTORS.lock().unwrap();
    let btf = kernel_types().unwrap();
    let mut ours = HashSet::new();
    for _ in 0..20 {
        let mut probe = TaskProbe::load(&btf, Some(Room::default())).unwrap();
        pass(&mut probe);
        probe.exited().unwrap();
        let held = held(std::process::id());
        // Three programs, three maps, two links at least.
        assert!(held.len() >= 8 && remaining(&held).len() >= 8, "{held:?}");
        ours.extend(held);
    }
    assert!(ours.len() >= 160, "{}", ours.len());
    assert_gone(&ours);
}

#[test]
fn a_killed_process_leaves_nothing() {
    for _ in 0..3 {
        let exe = std::env::current_exe().unwrap();
        let mut child = Command::new(exe)
            .args(["--exact", "hold_until_killed", "--ignored", "--nocapture"])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let ours = awaited(60, || {
            let ours = held(child.id());
            if ours.len() < 8 { Err(format!("not loaded: {ours:?}")) } else { Ok(ours) }
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert_gone(&ours);
    }
}

#[test]
#[ignore = "run and killed by the test above"]
fn hold_until_killed() {
    let mut probe = TaskProbe::load(&kernel_types().unwrap(), Some(Room::default())).unwrap();
    for _ in 0..6000 {
        pass(&mut probe);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_same_number_of_descriptors_however_many_passes() {
    let _one = DESCRIPTORS.lock().unwrap();
    let mut probe = TaskProbe::load(&kernel_types().unwrap(), Some(Room::default())).unwrap();
    let number = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    pass(&mut probe);
    let before = number();
    for _ in 0..50 {
        pass(&mut probe);
    }
    assert!(number() < before + 10, "{before} grew to {}", number());
}
