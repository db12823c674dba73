//! Real tasks that carry our values without being children: a thread that took its process's number by `exec`, and a
//! child made with `CLONE_PARENT`. Needs root.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use evenkeel_actuate::{Actuator, Kernel, Linux, Options, restore};
use evenkeel_base::{CpuSet, Knob, Setting, Target, TaskId};
use evenkeel_linux::testing::{comm, until};
use support::{batch, plan, state_dir};

const ROLE: &str = "EVENKEEL_TEST_KIN";

/// This program once more, in a role of its own, and what it printed: a number.
struct Kin {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    /// A child of ours that it made.
    born: Option<u32>,
}

impl Kin {
    fn new(role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_role", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output, born: None }
    }

    /// The next number it prints; other lines are those of the test harness.
    fn number(&mut self) -> u32 {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "it ended");
            if let Some(number) = line.split("number ").nth(1) {
                return number.trim().parse().unwrap();
            }
        }
    }

    fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    }
}

impl Drop for Kin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(pid) = self.born.and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
    }
}

/// What the other processes of these tests do; nothing when run as a test.
#[test]
fn a_role() {
    let wait = || std::io::stdin().read_exact(&mut [0]).unwrap();
    match std::env::var(ROLE).as_deref() {
        Ok("exec") => {
            let thread = std::thread::spawn(move || {
                println!("number {}", rustix::thread::gettid().as_raw_nonzero());
                wait();
                panic!("{}", Command::new("sleep").arg("300").exec());
            });
            thread.join().unwrap();
        }
        Ok("beside") => {
            // The test harness runs this on a thread.
            println!("number {}", rustix::thread::gettid().as_raw_nonzero());
            wait();
            let flags = libc::CLONE_PARENT | libc::SIGCHLD;
            // SAFETY: as fork(), whose child does nothing but wait.
            let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
            if child == 0 {
                loop {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                }
            }
            println!("number {child}");
            wait();
        }
        _ => {}
    }
}

fn task(tid: u32) -> TaskId {
    Linux::new().unwrap().identity(tid).unwrap().id
}

fn value(tid: u32, knob: Knob) -> Setting {
    Linux::new().unwrap().read(&Target::Task(task(tid)), knob).unwrap()
}

fn changed(dir: &std::path::Path, id: TaskId) -> Actuator<Linux> {
    let (mut actuator, _) = Actuator::open(Linux::new().unwrap(), dir, Options::default()).unwrap();
    let changes =
        vec![(Target::Task(id), batch(7, 50)), (Target::Task(id), Setting::Affinity(CpuSet::single(0)))];
    let report = actuator.set(&plan(changes), &|_| true);
    assert_eq!(report.applied(), 2, "{report:?}");
    actuator
}

fn is_as_found(tid: u32, affinity: &Setting) {
    // Children begin with this process's own: tests may run under `nice`.
    assert_eq!(value(tid, Knob::Sched), value(std::process::id(), Knob::Sched));
    assert_eq!(&value(tid, Knob::Affinity), affinity);
}

#[test]
fn a_thread_that_took_its_processs_number_by_exec_goes_back() {
    for killed in [false, true] {
        let dir = state_dir();
        let mut kin = Kin::new("exec");
        let (pid, tid) = (kin.child.id(), kin.number());
        assert_ne!(pid, tid);
        let affinity = value(pid, Knob::Affinity);
        let mut actuator = changed(dir.path(), task(tid));
        is_as_found(pid, &affinity);
        kin.go_on();
        until("it sleeps", || comm(pid) == "sleep");
        assert_eq!(value(pid, Knob::Sched), batch(7, 50), "the thread's, under its process's number");
        if killed {
            drop(actuator);
            let recovery = restore(dir.path(), Linux::new().unwrap()).unwrap();
            assert!(recovery.report.is_clean(), "{recovery:?}");
        } else {
            // Known to the living, too: a plan that names nobody takes it back.
            let report = actuator.set(&plan(vec![]), &|_| true);
            is_as_found(pid, &affinity);
            assert!(report.back.is_clean() && actuator.close().is_clean());
        }
        is_as_found(pid, &affinity);
    }
}

#[test]
fn a_child_made_with_clone_parent_goes_back() {
    for killed in [false, true] {
        let dir = state_dir();
        let mut kin = Kin::new("beside");
        let pid = kin.number();
        let affinity = value(pid, Knob::Affinity);
        let actuator = changed(dir.path(), task(pid));
        kin.go_on();
        let child = kin.number();
        kin.born = Some(child);
        assert_eq!(Linux::new().unwrap().identity(child).unwrap().ppid, std::process::id());
        assert_eq!(value(child, Knob::Sched), batch(7, 50));
        let report = if killed {
            drop(actuator);
            restore(dir.path(), Linux::new().unwrap()).unwrap().report
        } else {
            actuator.close()
        };
        assert!(report.is_clean(), "{report:?}");
        is_as_found(pid, &affinity);
        is_as_found(child, &affinity);
    }
}
