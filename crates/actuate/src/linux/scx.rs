//! The host's scheduler: the kernel's own, or a BPF scheduler (sched_ext) that a program of ours loads.
//!
//! Such a scheduler decides for as long as its program runs. When that ends, whatever ends it, the kernel's own is back
//! (`scx_disable` in `kernel/sched/ext.c`). The program ends with this process (`PR_SET_PDEATHSIG`), so after `kill -9` there is
//! nothing left to undo but what is on its way out.

use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_base::HostScheduler;
use evenkeel_linux::children::{Children, bind};
use evenkeel_linux::process::is_alive;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::kernel::KernelError;

/// How long a scheduler may take to load: the kernel verifies it first.
const LOADING: Duration = Duration::from_secs(30);
/// How long a program may take to end when it is asked to, and the kernel to take its scheduler out.
const LEAVING: Duration = Duration::from_secs(3);
/// How long a scheduler that is not ours is looked at before it counts as another program's: a killed predecessor's is going.
const GOING: Duration = Duration::from_secs(2);
/// Between two looks.
const AWHILE: Duration = Duration::from_millis(5);
/// Of what a program says, so many bytes are kept, the last ones; of these so many lines are shown.
const KEPT: usize = 4096;
const LINES: usize = 3;

pub(super) struct Scx {
    root: PathBuf,
    program: Option<Program>,
}

/// A program whose scheduler is in charge, or is about to be.
struct Program {
    name: String,
    /// What its scheduler is called in the kernel.
    ops: String,
    children: Children,
    said: Said,
}

impl Scx {
    /// The scheduler of the host with this root directory.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), program: None }
    }

    /// Who decides now.
    pub fn read(&mut self) -> Result<HostScheduler, KernelError> {
        let until = Instant::now() + GOING;
        loop {
            let loaded = self.loaded()?;
            if let Some(program) = &mut self.program {
                let ended = program.children.ended(0);
                if ended.is_none() && loaded.as_ref() == Some(&program.ops) {
                    return Ok(HostScheduler::Program(program.name.clone()));
                }
                let why = program.said.last(ended.is_some());
                tracing::warn!("{} is not in charge any more: {why}", program.name);
                self.program = None;
                continue;
            }
            match loaded {
                None => return Ok(HostScheduler::Kernel),
                Some(ops) if Instant::now() >= until => return Ok(HostScheduler::Other(ops)),
                Some(_) => std::thread::sleep(AWHILE),
            }
        }
    }

    /// Has another scheduler decide.
    pub fn write(&mut self, to: &HostScheduler) -> Result<(), KernelError> {
        match to {
            HostScheduler::Kernel => self.stop(),
            HostScheduler::Program(name) => {
                self.stop()?;
                self.start(name)
            }
            HostScheduler::Other(name) => Err(KernelError::Invalid(format!("{name} is another program's"))),
        }
    }

    fn start(&mut self, name: &str) -> Result<(), KernelError> {
        if let Some(ops) = self.loaded()? {
            return Err(KernelError::Invalid(format!("another program has loaded the BPF scheduler {ops}")));
        }
        let said = Said::default();
        let mut program =
            Program { name: name.to_owned(), ops: String::new(), children: run(name, &said)?, said };
        let until = Instant::now() + LOADING;
        loop {
            if program.children.ended(0).is_some() {
                return Err(KernelError::Invalid(format!(
                    "{name} does not load: {}",
                    program.said.last(true)
                )));
            }
            if let Some(ops) = self.loaded()? {
                program.ops = ops;
                self.program = Some(program);
                return Ok(());
            }
            if Instant::now() > until {
                let why = program.said.last(false);
                return Err(KernelError::Invalid(format!(
                    "{name} is not in charge after {LOADING:?}: {why}"
                )));
            }
            std::thread::sleep(AWHILE);
        }
    }

    fn stop(&mut self) -> Result<(), KernelError> {
        let Some(program) = self.program.take() else { return Ok(()) };
        // Not reaped yet, so the number is still its own; its group, for what a script around it may have started.
        let group = program.children.pid(0).and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        for signal in [Signal::TERM, Signal::KILL] {
            if let Some(group) = group {
                let _ = kill_process_group(group, signal);
            }
            let until = Instant::now() + LEAVING;
            while Instant::now() < until {
                let alive = program.children.pid(0).is_some_and(is_alive);
                if !alive && self.loaded()?.as_ref() != Some(&program.ops) {
                    return Ok(());
                }
                std::thread::sleep(AWHILE);
            }
        }
        let error = format!("its scheduler {} is still in charge", program.ops);
        Err(KernelError::Io { path: program.name, error })
    }

    /// The BPF scheduler in charge, by its name in the kernel; `None` for none. Waits while that changes.
    fn loaded(&self) -> Result<Option<String>, KernelError> {
        let until = Instant::now() + LOADING;
        loop {
            let path = self.root.join("sys/kernel/sched_ext/state");
            let state = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
                ErrorKind::NotFound => KernelError::Unsupported(
                    "BPF schedulers need Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT".to_owned(),
                ),
                _ => KernelError::Io { path: path.display().to_string(), error: error.to_string() },
            })?;
            match state.trim() {
                "disabled" => return Ok(None),
                // Its name is gone when it is.
                "enabled" => {
                    if let Ok(ops) = std::fs::read_to_string(self.root.join("sys/kernel/sched_ext/root/ops"))
                    {
                        return Ok(Some(ops.trim().to_owned()));
                    }
                }
                _ => {}
            }
            if Instant::now() > until {
                let error = format!("remains {:?}", state.trim());
                return Err(KernelError::Io { path: path.display().to_string(), error });
            }
            std::thread::sleep(AWHILE);
        }
    }
}

/// Starts a scheduler's program. It has a group of its own: Ctrl-C is for us, who end it in order.
fn run(name: &str, said: &Said) -> Result<Children, KernelError> {
    let failed = |what: &str, error: std::io::Error| KernelError::Io {
        path: what.to_owned(),
        error: error.to_string(),
    };
    let mut command = Command::new(name);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    bind(&mut command, libc::SIGKILL);
    let (name, said) = (name.to_owned(), said.clone());
    let start = move || -> Result<Vec<Child>, KernelError> {
        let mut child = command.spawn().map_err(|error| failed(&name, error))?;
        said.listen(child.stderr.take());
        Ok(vec![child])
    };
    Children::start(start, failed)
}

/// What a program says on its standard error, which is read all the time: it must not wait for us.
#[derive(Clone, Default)]
struct Said {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Said {
    fn listen(&self, pipe: Option<ChildStderr>) {
        let Some(mut pipe) = pipe else { return };
        let text = Arc::clone(&self.text);
        let read = move || {
            let mut buffer = [0; 1024];
            loop {
                let length = match pipe.read(&mut buffer) {
                    Ok(length @ 1..) => length,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    _ => return,
                };
                let mut text = text.lock().unwrap_or_else(PoisonError::into_inner);
                text.extend_from_slice(&buffer[..length]);
                let beyond = text.len().saturating_sub(KEPT);
                text.drain(..beyond);
            }
        };
        let thread = std::thread::Builder::new().name("scheduler".into()).spawn(read);
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = thread.ok();
    }

    /// Its last lines. Of a program that has ended, all that it said is waited for, a moment.
    fn last(&self, ended: bool) -> String {
        let until = Instant::now() + Duration::from_millis(200);
        let reads = || {
            let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
            reader.as_ref().is_some_and(|thread| !thread.is_finished())
        };
        while ended && reads() && Instant::now() < until {
            std::thread::sleep(AWHILE);
        }
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match lines.as_slice() {
            [] => "it gives no reason".to_owned(),
            lines => lines[lines.len().saturating_sub(LINES)..].join("; "),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::RwLockWriteGuard;

    use evenkeel_linux::testing::turn;

    use super::*;

    /// A host with sched_ext whose schedulers are scripts; one at a time, for a script that another thread's `fork` has open
    /// for writing cannot be run.
    struct Host {
        dir: tempfile::TempDir,
        _alone: RwLockWriteGuard<'static, ()>,
    }

    impl Host {
        fn new() -> Self {
            let _alone = turn();
            let host = Self { dir: tempfile::tempdir().unwrap(), _alone };
            fs::create_dir_all(host.at("sys/kernel/sched_ext/root")).unwrap();
            host.set("disabled");
            host
        }

        fn at(&self, path: &str) -> PathBuf {
            self.dir.path().join(path)
        }

        fn set(&self, state: &str) {
            fs::write(self.at("sys/kernel/sched_ext/root/ops"), "fifo\n").unwrap();
            fs::write(self.at("sys/kernel/sched_ext/state"), format!("{state}\n")).unwrap();
        }

        /// A program; `$1` in the script is the state's file.
        fn program(&self, name: &str, script: &str) -> String {
            let path = self.at(name);
            let state = self.at("sys/kernel/sched_ext/state");
            fs::write(&path, format!("#!/bin/sh\nset -- {}\n{script}\n", state.display())).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path.display().to_string()
        }

        /// A scheduler that goes when it is asked to; it says its pid.
        fn scheduler(&self) -> String {
            let script = "trap 'echo disabled >$1; exit 0' TERM\necho $$ >$1.pid; echo enabled >$1\n\
                          while :; do sleep 0.01; done";
            self.program("scx_fifo", script)
        }

        fn pid(&self) -> u32 {
            fs::read_to_string(self.at("sys/kernel/sched_ext/state.pid")).unwrap().trim().parse().unwrap()
        }

        fn scx(&self) -> Scx {
            Scx::at(self.dir.path())
        }
    }

    fn program(name: &str) -> HostScheduler {
        HostScheduler::Program(name.to_owned())
    }

    fn is_there(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn a_scheduler_is_started_and_ended() {
        let host = Host::new();
        let name = host.scheduler();
        let mut scx = host.scx();
        assert_eq!(scx.read(), Ok(HostScheduler::Kernel));
        scx.write(&program(&name)).unwrap();
        assert_eq!(scx.read(), Ok(program(&name)));
        let pid = host.pid();
        // One takes the place of the other.
        scx.write(&program(&name)).unwrap();
        assert!(!is_there(pid) && is_there(host.pid()));
        scx.write(&HostScheduler::Kernel).unwrap();
        assert_eq!(scx.read(), Ok(HostScheduler::Kernel));
        assert!(!is_there(host.pid()), "nothing of it is left");
    }

    #[test]
    fn one_that_does_not_load_says_why() {
        let host = Host::new();
        let name = host.program("scx_no", "echo one >&2; echo 'Error: libbpf: -EPERM' >&2; exit 1");
        let error = host.scx().write(&program(&name)).unwrap_err().to_string();
        assert!(error.contains("scx_no does not load: one; Error: libbpf: -EPERM"), "{error}");
        let missing = host.scx().write(&program("/nonexistent/scx_no")).unwrap_err().to_string();
        assert!(missing.contains("/nonexistent/scx_no"), "{missing}");
        let none = Scx::at("/nonexistent").read().unwrap_err();
        assert!(matches!(none, KernelError::Unsupported(_)), "{none}");
    }

    #[test]
    fn what_another_program_loaded_is_not_ours_and_stays() {
        let host = Host::new();
        let name = host.scheduler();
        host.set("enabled");
        let mut scx = host.scx();
        assert_eq!(scx.read(), Ok(HostScheduler::Other("fifo".to_owned())));
        let error = scx.write(&program(&name)).unwrap_err().to_string();
        assert!(error.contains("another program has loaded the BPF scheduler fifo"), "{error}");
        scx.write(&HostScheduler::Kernel).unwrap();
        assert_eq!(scx.read(), Ok(HostScheduler::Other("fifo".to_owned())));
        // A killed predecessor's is on its way out.
        let state = host.at("sys/kernel/sched_ext/state");
        let going = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            fs::write(state, "disabled\n").unwrap();
        });
        assert_eq!(scx.read(), Ok(HostScheduler::Kernel));
        going.join().unwrap();
    }

    #[test]
    fn one_that_was_ejected_or_killed_is_in_charge_no_more() {
        let host = Host::new();
        let name = host.scheduler();
        let mut scx = host.scx();
        scx.write(&program(&name)).unwrap();
        // The program goes on, as if nothing had happened.
        host.set("disabled");
        assert_eq!(scx.read(), Ok(HostScheduler::Kernel));
        assert!(!is_there(host.pid()), "it is ended");
        scx.write(&program(&name)).unwrap();
        rustix::process::kill_process(Pid::from_raw(host.pid() as i32).unwrap(), Signal::KILL).unwrap();
        host.set("disabled");
        assert_eq!(scx.read(), Ok(HostScheduler::Kernel));
    }

    #[test]
    fn one_that_does_not_end_when_asked_is_killed() {
        let host = Host::new();
        let script = "trap '' TERM; echo $$ >$1.pid; echo enabled >$1\nwhile :; do sleep 0.01; done";
        let name = host.program("scx_deaf", script);
        let mut scx = host.scx();
        scx.write(&program(&name)).unwrap();
        let (pid, state) = (host.pid(), host.at("sys/kernel/sched_ext/state"));
        // What the kernel does.
        let kernel = std::thread::spawn(move || {
            while is_alive(pid) {
                std::thread::sleep(AWHILE);
            }
            fs::write(state, "disabled\n").unwrap();
        });
        assert_eq!(scx.write(&HostScheduler::Kernel), Ok(()));
        assert!(!is_there(pid), "it was killed");
        kernel.join().unwrap();
    }
}
