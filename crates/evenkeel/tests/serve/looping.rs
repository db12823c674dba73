//! A `run --listen` that has everything to show: a service that counts its requests, and a guarantee.

use std::path::{Path, PathBuf};
use std::time::Instant;

use evenkeel_linux::testing::{TestCgroup, TestChild};

use super::agent::{BINARY, Serve, load};
use super::endpoint::Endpoint;

/// The loop, its loads and what they are in: ended in this order.
pub struct Looping {
    pub agent: Serve,
    _loads: Vec<TestChild>,
    _groups: Vec<TestCgroup>,
    _endpoint: Endpoint,
}

impl Looping {
    /// `dir` is where its configuration may be; `access` its options for token and certificate.
    pub fn start(dir: PathBuf, access: &[&str]) -> Self {
        // A thousand requests a second, one in a hundred slow.
        let began = Instant::now();
        let endpoint = Endpoint::start(move || {
            let all = began.elapsed().as_millis() as u64;
            (all, all - all / 100)
        });
        let groups = ["service", "other"].map(|name| TestCgroup::new(name).unwrap());
        let loads: Vec<TestChild> = groups
            .iter()
            .map(|group| {
                let load = load(Path::new(BINARY), 10);
                group.add(load.0.id()).unwrap();
                load
            })
            .collect();
        let scope = |at: usize| format!("cgroup:{}", groups[at].path());
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
            _groups: groups.into(),
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
