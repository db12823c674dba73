//! Every way in which `run` can end while its changes are in force, on the real kernel: afterwards all is as found, and no
//! journal is left.

mod scene;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use evenkeel_linux::testing::{TestChild, awaited};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use scene::{Group, Process, VISIBLE, crowd, evenkeel, hurried, snapshot, together, turn, until};

/// A run in a process group of its own, killed with its guard.
struct Run(TestChild);

impl Run {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    #[track_caller]
    fn end(&mut self) -> ExitStatus {
        awaited(60, || self.0.try_wait().unwrap().ok_or("it has not ended".to_owned()))
    }
}

struct Stage {
    // First to go: a group is removed when it is empty.
    _loads: Vec<Process>,
    group: Group,
    dir: tempfile::TempDir,
}

type Found = (
    std::collections::BTreeMap<evenkeel_base::TaskId, scene::Facts>,
    Vec<std::collections::BTreeMap<String, String>>,
);

impl Stage {
    fn new(name: &str) -> Self {
        let group = Group::new(name);
        let loads = crowd(&group);
        Self { group, _loads: loads, dir: tempfile::tempdir().unwrap() }
    }

    fn found(&self) -> Found {
        snapshot(&[&self.group])
    }

    fn command(&self, more: &[&str]) -> Command {
        let config = hurried(self.dir.path(), "20s");
        let mut command = evenkeel(self.dir.path(), &["--config", &config, "run", "--for", "100s"]);
        command.args(["--scope", &self.group.scope()]).args(VISIBLE).args(more).process_group(0);
        command
    }

    /// Starts it and waits until something of its own is in force.
    fn in_force(&self, command: &mut Command, before: &Found) -> Run {
        let mut run = Run(TestChild(command.spawn().unwrap()));
        until("something is in force", || {
            assert!(run.0.try_wait().unwrap().is_none(), "it has ended already");
            self.found() != *before
        });
        run
    }

    #[track_caller]
    fn assert_restored(&self, what: &str, before: &Found) {
        assert_eq!(self.found(), *before, "{what}");
        assert!(!self.dir.path().join("journal").exists(), "{what}: a journal is left");
    }

    fn file(&self, name: &str) -> std::fs::File {
        std::fs::File::create(self.dir.path().join(name)).unwrap()
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.path().join(name)).unwrap()).into_owned()
    }
}

#[test]
fn signals_only_ask_however_many_come() {
    let _turn = together();
    let stage = Stage::new("ends");
    let before = stage.found();
    let storms: [&[Signal]; 4] = [
        // What `timeout` does: the child, then its group.
        &[Signal::TERM, Signal::TERM],
        &[Signal::INT, Signal::INT, Signal::INT],
        &[Signal::HUP, Signal::TERM],
        &[Signal::USR1, Signal::QUIT, Signal::ALARM],
    ];
    for storm in storms {
        let mut command = stage.command(&[]);
        command.stdout(stage.file("out")).stderr(stage.file("err"));
        let mut run = stage.in_force(&mut command, &before);
        run.signal(storm[0]);
        for signal in &storm[1..] {
            kill_process_group(run.pid(), *signal).unwrap();
        }
        assert_eq!(run.end().code(), Some(0), "{storm:?}: {}", stage.read("err"));
        stage.assert_restored(&format!("{storm:?}"), &before);
        assert!(
            stage.read("out").contains(&stage.group.scope()),
            "{storm:?}: no summary: {}",
            stage.read("out")
        );
    }
    // nohup: a hang-up is no request.
    let mut command = stage.command(&[]);
    command.stdout(stage.file("out")).stderr(stage.file("err"));
    // SAFETY: takes numbers only, async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            Ok(())
        });
    }
    let mut run = stage.in_force(&mut command, &before);
    run.signal(Signal::HUP);
    std::thread::sleep(Duration::from_secs(1));
    assert!(run.0.try_wait().unwrap().is_none(), "a hang-up ended it: {}", stage.read("err"));
    run.signal(Signal::TERM);
    assert_eq!(run.end().code(), Some(0));
    stage.assert_restored("nohup", &before);
}

#[test]
fn a_console_that_goes_away_ends_nothing_and_leaves_nothing() {
    let _turn = together();
    let stage = Stage::new("console");
    let before = stage.found();

    // `run 2>&1 | head -1`.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = stage.command(&[]);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut run = stage.in_force(&mut command, &before);
    drop(command);
    reader.read_exact(&mut [0; 1]).unwrap();
    drop(reader);
    outlives(&stage, &mut run, "a closed pipe", &before, Some(0));

    // A pipe that nobody reads, full from the beginning.
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).unwrap();
    let mut command = stage.command(&[]);
    command.stdout(stage.file("out")).stderr(writer);
    let mut run = stage.in_force(&mut command, &before);
    outlives(&stage, &mut run, "a stalled pipe", &before, Some(0));
    drop(reader);

    // A log on a full disk.
    let mut command = stage.command(&[]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    command.stdout(stage.file("out")).stderr(full);
    let mut run = stage.in_force(&mut command, &before);
    outlives(&stage, &mut run, "a full disk", &before, Some(0));

    // A terminal that was closed: results cannot be shown, which is an error, but nothing stays in force.
    let (master, slave) = terminal();
    let mut command = stage.command(&[]);
    command.stdout(Stdio::from(slave.try_clone().unwrap())).stderr(Stdio::from(slave));
    let mut run = stage.in_force(&mut command, &before);
    drop(command);
    drop(master);
    outlives(&stage, &mut run, "a closed terminal", &before, Some(3));
}

/// It goes on, and is ended by a signal.
#[track_caller]
fn outlives(stage: &Stage, run: &mut Run, what: &str, before: &Found, status: Option<i32>) {
    std::thread::sleep(Duration::from_secs(3));
    assert!(run.0.try_wait().unwrap().is_none(), "{what} ended it");
    run.signal(Signal::TERM);
    assert_eq!(run.end().code(), status, "{what}");
    stage.assert_restored(what, before);
}

/// A pseudo-terminal's two ends.
fn terminal() -> (OwnedFd, OwnedFd) {
    use std::os::fd::FromRawFd;
    let (mut master, mut slave) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: fills two numbers; the descriptors are owned from here on.
    unsafe {
        assert_eq!(libc::openpty(&raw mut master, &raw mut slave, none, none.cast(), none.cast()), 0);
        for fd in [master, slave] {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    }
}

#[test]
fn a_panic_anywhere_restores_first() {
    let _turn = together();
    let stage = Stage::new("panic");
    let before = stage.found();
    let points = [
        "agent.set:2",
        "agent.pause:40",
        "actuate.written:3",
        "actuate.restored:2",
        "agent.close",
        "listen.page:1",
    ];
    for point in points {
        let mut command = stage.command(&["--listen", "127.0.0.1:0"]);
        command.env("EVENKEEL_TEST_PANIC_AT", point);
        command.stdout(stage.file("out")).stderr(stage.file("err"));
        let mut run = Run(TestChild(command.spawn().unwrap()));
        if point.starts_with("agent.close") || point.starts_with("listen") {
            until("something is in force", || stage.found() != before);
            if point.starts_with("listen") {
                let _ = get(&address(&stage.read("err")), "/metrics");
            } else {
                run.signal(Signal::TERM);
            }
        }
        assert_eq!(run.end().code(), Some(101), "{point}: {}", stage.read("err"));
        assert!(stage.read("err").contains("injected at"), "{point}: {}", stage.read("err"));
        stage.assert_restored(point, &before);
    }
}

fn address(words: &str) -> String {
    let line = words.lines().find(|line| line.contains("listening on")).unwrap();
    line.rsplit('/').next().unwrap().to_owned()
}

fn get(address: &str, path: &str) -> std::io::Result<String> {
    evenkeel_fetch::http::get(&format!("http://{address}{path}"), Duration::from_secs(20))
}

/// Closes with a reset.
fn reset(stream: TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
}

/// A client that means no good: idle, slow, huge, reset and unread connections in turn, 300 of them held.
struct Hostile {
    address: String,
    huge: Vec<u8>,
    held: std::collections::VecDeque<TcpStream>,
}

impl Hostile {
    fn new(address: &str) -> Self {
        let huge = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 200_000]].concat();
        Self { address: address.to_owned(), huge, held: std::collections::VecDeque::new() }
    }

    fn connect(&mut self, number: u32) {
        // Where the backlog is full for a moment, the next one is tried.
        let Ok(mut stream) = TcpStream::connect(&self.address) else { return };
        let _ = stream.set_write_timeout(Some(Duration::from_millis(50)));
        match number % 5 {
            0 => {}
            1 => drop(stream.write(b"GET /metr")),
            2 => drop(stream.write(&self.huge)),
            3 => {
                let _ = stream.write(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n");
                return reset(stream);
            }
            _ => {
                let _ = stream.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
            }
        }
        self.held.push_back(stream);
        if self.held.len() > 300 {
            self.held.pop_front();
        }
    }
}

#[test]
fn the_loop_keeps_its_pace_under_hostile_connections() {
    let _turn = turn();
    let group = Group::new("pace");
    let load = group.duty(20, "closed");
    let dir = tempfile::tempdir().unwrap();
    let promise =
        format!("[run]\ninterval = \"100ms\"\n[[guarantee]]\nscope = \"{}\"\ncpu = \"10%\"\n", load.scope());
    let config = scene::configured(dir.path(), &promise);
    let scope = ["--scope", &load.scope(), "--for", "100s", "--listen", "127.0.0.1:0"];
    let args = [&["--config", &config, "run", "--guarantees-only"], &scope[..]].concat();
    let mut agent = scene::Agent::run(dir.path(), &args);
    until("it listens", || agent.words().contains("listening on"));
    let address = address(&agent.words());
    // Instants of the loop's observations, as a client sees them in a time.
    let turns = |seconds: u64| -> usize {
        let mut seen = std::collections::BTreeSet::new();
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            let page = get(&address, "/status").unwrap_or_default();
            let status: serde_json::Value = serde_json::from_str(&page).unwrap_or_default();
            seen.extend(status["host"]["at"].as_str().map(str::to_owned));
            std::thread::sleep(Duration::from_millis(20));
        }
        seen.len()
    };
    until("it observes", || turns(1) > 1);
    let quiet = turns(5);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (attacked, attacks) = std::thread::scope(|scope| {
        let attack = scope.spawn(|| {
            let mut hostile = Hostile::new(&address);
            (0u32..)
                .take_while(|_| !stop.load(std::sync::atomic::Ordering::Relaxed))
                .inspect(|&n| hostile.connect(n))
                .count()
        });
        let attacked = turns(5);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        (attacked, attack.join().unwrap())
    });
    println!("observations in 5 s: {quiet} before, {attacked} under {attacks} hostile connections");
    assert!(quiet >= 10, "{quiet} observations in 5 s: nothing to compare with");
    assert!(
        attacked as f64 >= 0.8 * quiet as f64,
        "{quiet} observations before, {attacked} under {attacks} connections"
    );
    agent.end_by(Signal::TERM).with(0);
}

/// `EVENKEEL_HOSTILE_CONNECTIONS` of them; 10,000 by `make test-kill`.
#[test]
fn thousands_of_hostile_connections_do_not_reach_the_loop() {
    let connections =
        std::env::var("EVENKEEL_HOSTILE_CONNECTIONS").map_or(2_500, |text| text.parse().unwrap());
    let _turn = turn();
    let stage = Stage::new("hostile");
    let before = stage.found();
    let mut command = stage.command(&["--listen", "127.0.0.1:0"]);
    command.stdout(stage.file("out")).stderr(stage.file("err"));
    let mut run = stage.in_force(&mut command, &before);
    let address = address(&stage.read("err"));
    let pid = run.0.id();
    let memory = |name: &str| -> u64 {
        let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
        let status = status.unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_ascii_whitespace().next().unwrap().parse().unwrap()
    };
    get(&address, "/metrics").unwrap();
    let (resident, descriptors) = (memory("VmRSS:"), open_files(run.0.id()));
    let (mut most, mut peak) = (0, 0);
    let mut hostile = Hostile::new(&address);
    for number in 0..connections {
        hostile.connect(number);
        if number % 500 == 0 {
            most = most.max(open_files(run.0.id()));
            peak = peak.max(memory("VmRSS:"));
        }
    }
    assert!(run.0.try_wait().unwrap().is_none(), "it has ended: {}", stage.read("err"));
    // Idle ones are still held: whoever asks properly is answered.
    get(&address, "/metrics").unwrap();
    let now = memory("VmRSS:").max(peak);
    println!(
        "resident {resident} kB before, {now} kB at most; {descriptors} descriptors before, {most} at most"
    );
    assert!(now < resident + (16 << 10), "{resident} kB before, {now} kB now");
    assert!(most < descriptors + 80, "{descriptors} descriptors before, {most} meanwhile");
    let page = {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n").unwrap();
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    };
    assert!(page.starts_with("HTTP/1.1 421"), "{page}");
    run.signal(Signal::TERM);
    assert_eq!(run.end().code(), Some(0), "{}", stage.read("err"));
    stage.assert_restored("hostile clients", &before);
}

fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}
