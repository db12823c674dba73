//! A service's endpoint that counts requests: how many there were, and how many took 50 ms at most.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Endpoint {
    pub address: SocketAddr,
    /// Whether it takes questions and does not answer.
    pub hangs: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Endpoint {
    /// Answers any question with all requests so far and the quick ones of them.
    pub fn start(counts: impl Fn() -> (u64, u64) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let endpoint = Self { address, hangs: Arc::default(), ended: Arc::default() };
        let (hangs, ended) = (endpoint.hangs.clone(), endpoint.ended.clone());
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                let mut stream = stream.unwrap();
                if hangs.load(Ordering::Relaxed) {
                    held.push(stream);
                    continue;
                }
                let (all, quick) = counts();
                let page = format!(
                    "up 1\nt_seconds_bucket{{le=\"0.05\"}} {quick}\nt_seconds_bucket{{le=\"+Inf\"}} {all}\n"
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
