//! Services as processes: how each is started, when it is ready, and what it is asked.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_workload::Kind;
use evenkeel_workload::ask::Ask;
use evenkeel_workload::wakeup::Wakeup;

use super::plan::Service;
use crate::launch::Launch;

/// Time between two requests.
const PERIOD: Duration = Duration::from_millis(1);
/// Work at each wake-up of the built-in service, percent of the period.
const WORK_PCT: f64 = 10.0;
/// Bytes of what services are asked for.
const VALUE: usize = 500;
/// How long a service may take to come up.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// How long it may take to answer meanwhile.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// The built-in service, which asks itself.
pub(super) fn probe() -> Kind {
    Kind::Wakeup(Wakeup::new(PERIOD, WORK_PCT))
}

/// A server of the host's.
#[derive(Debug)]
pub(super) struct Server {
    socket: PathBuf,
    /// What is said to it first: it makes it hold what it is asked for.
    first: String,
    /// How its answer to that begins.
    expected: &'static [u8],
    request: &'static str,
}

impl Server {
    /// How it is started, with its files in `dir`; `None` for the built-in service.
    pub fn of(service: Service, dir: &Path) -> io::Result<Option<(Launch, Self)>> {
        let socket = dir.join("service.sock");
        let (at, value, files) = (socket.display().to_string(), "x".repeat(VALUE), dir.display().to_string());
        let (arguments, first, expected, request): (Vec<&str>, String, &[u8], _) = match service {
            Service::Wakeup => return Ok(None),
            Service::Redis => (
                vec!["--port", "0", "--unixsocket", &at, "--save", "", "--dir", &files],
                format!("SET key {value}\r\n"),
                b"+OK",
                "GET key\\r\\n",
            ),
            Service::Memcached => (
                vec!["-u", "root", "-t", "1", "-s", &at],
                format!("set key 0 0 {VALUE}\r\n{value}\r\n"),
                b"STORED",
                "get key\\r\\n",
            ),
            Service::Nginx => {
                std::fs::write(dir.join("nginx.conf"), nginx(&files, &at, &value))?;
                let request = "GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n";
                let first = "GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned();
                (vec!["-p", &files, "-c", "nginx.conf"], first, b"HTTP/1.1 200", request)
            }
        };
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        let launch = Launch::new(service.program().unwrap_or_default(), arguments);
        Ok(Some((launch, Self { socket, first, expected, request })))
    }

    /// Waits until it answers.
    ///
    /// # Errors
    /// It does not, within ten seconds: what it did instead.
    pub fn until_ready(&self) -> Result<(), String> {
        let until = Instant::now() + READY_WITHIN;
        loop {
            let why = match self.hear() {
                Ok(heard) if heard == self.expected => return Ok(()),
                Ok(heard) => format!("it answers {:?}", String::from_utf8_lossy(&heard)),
                Err(error) => error.to_string(),
            };
            if Instant::now() >= until {
                return Err(format!(
                    "{}: no service is ready there after 10 s: {why}",
                    self.socket.display()
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// How it answers what is said to it first.
    fn hear(&self) -> io::Result<Vec<u8>> {
        let mut socket = UnixStream::connect(&self.socket)?;
        socket.set_read_timeout(Some(ANSWER_WITHIN))?;
        socket.write_all(self.first.as_bytes())?;
        let mut heard = vec![0; self.expected.len()];
        socket.read_exact(&mut heard)?;
        Ok(heard)
    }

    pub fn client(&self) -> Kind {
        Kind::Ask(Ask::new(self.socket.display().to_string(), self.request, PERIOD))
    }
}

/// One worker without logs, which answers from its configuration.
fn nginx(dir: &str, socket: &str, value: &str) -> String {
    format!(
        "daemon off; worker_processes 1; user root; pid {dir}/nginx.pid; error_log /dev/null;\n\
         events {{}}\n\
         http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {dir}/body;\n\
         server {{ listen unix:{socket}; location / {{ return 200 '{value}'; }} }} }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_service_is_ready_once_it_answers_as_it_should() {
        let dir = tempfile::tempdir().unwrap();
        let (_, server) = Server::of(Service::Memcached, dir.path()).unwrap().unwrap();
        let listener = UnixListener::bind(dir.path().join("service.sock")).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // At first it only complains.
            for answer in [&b"ERROR\r\n"[..], b"STORED\r\n"] {
                let mut flow = listener.accept().unwrap().0;
                let mut buffer = [0; 1024];
                let length = flow.read(&mut buffer).unwrap();
                flow.write_all(answer).unwrap();
                tell.send(buffer[..length].to_vec()).unwrap();
            }
        });
        server.until_ready().unwrap();
        let said: Vec<Vec<u8>> = (0..2).map_while(|_| told.recv_timeout(READY_WITHIN).ok()).collect();
        assert_eq!(said.len(), 2, "it was content with an error");
        assert!(
            said.iter().all(|text| text.starts_with(b"set key 0 0 500\r\nxxx") && text.len() == 17 + 500 + 2)
        );
    }

    #[test]
    fn every_service_but_the_built_in_one_is_a_program_with_files_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Server::of(Service::Wakeup, dir.path()).unwrap().is_none());
        for service in [Service::Redis, Service::Memcached, Service::Nginx] {
            let (launch, server) = Server::of(service, dir.path()).unwrap().unwrap();
            assert_eq!(launch.program.to_str(), service.program());
            let Kind::Ask(ask) = server.client() else { panic!("{service}") };
            assert!(ask.address.starts_with(dir.path().to_str().unwrap()) && ask.request.ends_with("\\r\\n"));
        }
        let text = std::fs::read_to_string(dir.path().join("nginx.conf")).unwrap();
        assert!(text.contains("service.sock") && text.contains("return 200 'xxx"), "{text}");
    }
}
