//! A `run --listen` that has everything to show: a service that counts its requests, and a guarantee.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::agent::{BINARY, Group, Running, Serve, load};

/// Answers any question with what a service counts that has a thousand requests a second, one in a hundred slow.
struct Endpoint {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Endpoint {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Self { address: listener.local_addr().unwrap(), ended: Arc::default() };
        let (ended, began) = (endpoint.ended.clone(), Instant::now());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let mut stream = stream.unwrap();
                let all = began.elapsed().as_millis();
                let page = format!(
                    "t_seconds_bucket{{le=\"0.05\"}} {}\nt_seconds_bucket{{le=\"+Inf\"}} {all}\n",
                    all - all / 100
                );
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{page}").as_bytes());
            }
        });
        endpoint
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

/// The loop, its loads and what they are in: ended in this order.
pub struct Looping {
    pub agent: Serve,
    _loads: Vec<Running>,
    _groups: Vec<Group>,
    _endpoint: Endpoint,
}

impl Looping {
    /// `dir` is where its configuration may be; `access` its options for token and certificate.
    pub fn start(dir: PathBuf, access: &[&str]) -> Self {
        let endpoint = Endpoint::start();
        let groups = vec![Group::make("evenkeel-service"), Group::make("evenkeel-other")];
        let loads: Vec<Running> = groups
            .iter()
            .map(|group| {
                let load = load(Path::new(BINARY), 10);
                group.add(load.0.id());
                load
            })
            .collect();
        let scope = |at: usize| format!("cgroup:/{}", groups[at].0.file_name().unwrap().to_str().unwrap());
        let config = dir.join("loop.toml");
        let text = format!(
            "[run]\nscope = [{:?}]\n[[service]]\nscope = {:?}\nslo = {{ endpoint = \"http://{}/metrics\", histogram = \
             \"t_seconds\", quantile = 0.95, bound = \"50ms\" }}\n[[guarantee]]\nscope = {:?}\ncpu = \"5%\"\nwait_p99 = \"50ms\"\n",
            scope(1),
            scope(0),
            endpoint.address,
            scope(1)
        );
        std::fs::write(&config, text).unwrap();
        let run = ["run", "--config", config.to_str().unwrap(), "--listen", "127.0.0.1:0"];
        Self {
            agent: Serve::command(&[&run, access].concat()),
            _loads: loads,
            _groups: groups,
            _endpoint: endpoint,
        }
    }
}

impl Drop for Looping {
    fn drop(&mut self) {
        // It restores what it changed, which a kill would leave.
        self.agent.end();
    }
}
