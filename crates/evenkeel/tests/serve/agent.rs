//! A `serve` at work and loads next to it, all ended with the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_linux::testing::{TestChild, awaited};

pub const BINARY: &str = env!("CARGO_BIN_EXE_evenkeel");

/// `serve` on a free port.
pub struct Serve {
    pub process: TestChild,
    pub address: String,
    pub state: tempfile::TempDir,
    said: Arc<Mutex<String>>,
}

impl Serve {
    pub fn start(options: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", options)
    }

    pub fn start_at(listen: &str, options: &[&str]) -> Self {
        Self::command(&[&["serve", "--listen", listen], options].concat())
    }

    /// What serves pages, `run --listen` for one.
    pub fn command(args: &[&str]) -> Self {
        Self::command_with(args, &[])
    }

    /// With variables of the environment.
    pub fn command_with(args: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::spawned(Command::new(BINARY), args, environment)
    }

    /// By a command to which evenkeel's arguments are added.
    pub fn spawned(mut command: Command, args: &[&str], environment: &[(&str, &str)]) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut process = TestChild(
            command
                .arg("--state-dir")
                .arg(state.path())
                .args(args)
                .envs(environment.iter().copied())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let said = Arc::<Mutex<String>>::default();
        let mut lines = BufReader::new(process.0.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| {
            said.lock().unwrap().push_str(line);
            line.contains("listening on")
        });
        let line = line.unwrap_or_else(|| panic!("it does not listen: {}", said.lock().unwrap()));
        let heard = said.clone();
        std::thread::spawn(move || lines.for_each(|line| *heard.lock().unwrap() += &(line + "\n")));
        let address = line.rsplit('/').next().unwrap().to_owned();
        Self { process, address, state, said }
    }

    /// Ends it as a service manager does.
    pub fn end(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.process.0.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = self.process.0.wait();
        }
    }

    /// What it said so far on stderr.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Head and body of the answer.
    pub fn get(&self, path: &str, headers: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", self.address).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    /// Somebody who listens to its events, as soon as there is room: who has just gone has some for a moment yet.
    pub fn listen(&self) -> Listener {
        awaited(90, || {
            let mut stream = TcpStream::connect(&self.address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            write!(stream, "GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).unwrap();
            let mut status = [0; 12];
            stream.read_exact(&mut status).unwrap();
            let is_ok = status == *b"HTTP/1.1 200";
            if is_ok { Ok(Listener::new(stream)) } else { Err(String::from_utf8_lossy(&status).into_owned()) }
        })
    }

    pub fn metrics(&self) -> String {
        let (head, body) = self.get("/metrics", "");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        body
    }

    /// The page of metrics once this is in it.
    pub fn metrics_with(&self, what: &str) -> String {
        awaited(90, || {
            let page = self.metrics();
            if page.contains(what) { Ok(page) } else { Err(format!("no {what} in {page}")) }
        })
    }
}

/// Waits until an answer's status says that all is well.
pub fn until_well(status: impl Fn() -> String) {
    awaited(60, || match status() {
        well if well == "200" => Ok(()),
        status => Err(format!("never well: {status}")),
    });
}

/// Takes events as they come; the connection ends with it.
pub struct Listener {
    stream: TcpStream,
    /// When what each event shows was seen, ms.
    told: Arc<Mutex<Vec<u64>>>,
}

impl Listener {
    fn new(stream: TcpStream) -> Self {
        let told = Arc::<Mutex<Vec<u64>>>::default();
        let (lines, heard) = (BufReader::new(stream.try_clone().unwrap()).lines(), told.clone());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(at) = line.strip_prefix("id: ") {
                    heard.lock().unwrap().push(at.parse().unwrap());
                }
            }
        });
        Self { stream, told }
    }

    /// Waits until so many events came.
    pub fn told(&self, count: usize) -> Vec<u64> {
        awaited(90, || {
            let told = self.told.lock().unwrap().clone();
            if told.len() >= count { Ok(told) } else { Err(format!("{count} events are awaited: {told:?}")) }
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// A load under a name of its own.
pub fn load(program: &Path, percent: u32) -> TestChild {
    let load = Command::new(program)
        .args(["load", "duty", "--percent", &percent.to_string(), "--seconds", "300"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    TestChild(load)
}
