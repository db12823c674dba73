//! Notices by HTTP, from a cgroup that really starves.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use evenkeel_linux::testing::{TestCgroup, TestChild, awaited, posted};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use super::agent::{BINARY, Serve};
use super::pki::Pki;

/// Longest wait for what must come: a notice of starving comes after a minute of it.
const PATIENCE: Duration = Duration::from_secs(300);

/// One request: head and document.
fn take(stream: &mut impl Read) -> (String, Value) {
    let (head, body) = posted(stream);
    (head, serde_json::from_slice(&body).unwrap())
}

/// Answers 500, then 204 for good, over https; sends on what it was handed.
fn flaky(listener: TcpListener, config: Arc<ServerConfig>) -> mpsc::Receiver<(String, Value)> {
    let (send, taken) = mpsc::channel();
    std::thread::spawn(move || {
        let mut status = 500;
        for stream in listener.incoming() {
            let tls = ServerConnection::new(config.clone()).unwrap();
            let mut stream = StreamOwned::new(tls, stream.unwrap());
            let request = take(&mut stream);
            write!(stream, "HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n").unwrap();
            status = 204;
            if send.send(request).is_err() {
                return;
            }
        }
    });
    taken
}

/// Three loops of a cgroup that counts for nothing, behind one that does not belong to it, all on one CPU and out of the way of
/// others. Who does most of what the host does is not called starved, so the one must not be theirs.
fn starving(group: &TestCgroup) -> Vec<TestChild> {
    group.set(("cpu.shares", 2), ("cpu.weight", 1)).unwrap();
    let start = |inside: bool| {
        let load = Command::new("taskset")
            .args(["-c", "0", "nice", "-n", "19", BINARY])
            .args(["load", "duty", "--percent", "100", "--seconds", "600"])
            .stdout(Stdio::null())
            .spawn()
            .expect("taskset and nice must be there for this test (Debian: util-linux, coreutils)");
        if inside {
            group.add(load.id()).unwrap();
        }
        TestChild(load)
    };
    [false, true, true, true].map(start).into()
}

/// What serves https by this certificate.
pub fn served_by((cert, key): (PathBuf, PathBuf)) -> Arc<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(cert).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    Arc::new(builder.with_single_cert(chain, key).unwrap())
}

pub fn starving_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::make();
    let token = pki.secret("token", "a-secret-token\n");
    let listeners = ["127.0.0.1:0"; 2].map(|address| TcpListener::bind(address).unwrap());
    let address = |at: usize| listeners[at].local_addr().unwrap();
    let urls = [format!("https://{}/notices", address(0)), format!("http://{}/notices", address(1))];
    let [receiver, hanging] = listeners;
    let config = dir.path().join("config.toml");
    let text = format!(
        "[serve]\nwebhook = {:?}\nwebhook_token_file = {token:?}\nwebhook_ca = {:?}\n",
        urls[0],
        pki.ca()
    );
    std::fs::write(&config, text).unwrap();
    let told = flaky(receiver, served_by(pki.issue("receiver", "IP:127.0.0.1")));
    let group = TestCgroup::new("starving").unwrap();
    let name = group.path();
    let loads = starving(&group);
    let serve = Serve::start(&["--no-history", "--config", config.to_str().unwrap()]);
    let held = Serve::start(&["--no-history", "--webhook", &urls[1]]);
    // Others on this host may starve, too.
    let until = Instant::now() + PATIENCE;
    let mut mine = Vec::new();
    while mine.len() < 2 || mine[0] != mine[1] {
        let left = until.saturating_duration_since(Instant::now());
        let (head, document) = told.recv_timeout(left).expect("no notice of the starving cgroup came");
        assert!(head.contains("Authorization: Bearer a-secret-token"), "{head}");
        if document["what"] == name {
            mine.push(document);
        } else if mine.len() == 1 {
            // The first was taken at once: the one that failed was another's.
            break;
        }
    }
    let notice = &mine[0];
    assert_eq!((&notice["schema"], &notice["kind"]), (&"evenkeel.notice/v1".into(), &"starved".into()));
    assert_eq!(notice["state"], "begun");
    assert!(notice["since"].as_str() < notice["at"].as_str(), "{notice}");
    assert!(
        serve.metrics_with("evenkeel_webhook_delivered_total").contains("evenkeel_webhook_dropped_total 0")
    );
    // The receiver that hangs was asked, does not answer, and the host is looked at all the same.
    let (mut stream, _) = hanging.accept().unwrap();
    take(&mut stream);
    let looked = |page: &str| {
        let line =
            page.lines().find(|line| line.starts_with("evenkeel_observed_timestamp_seconds ")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let first = looked(&held.metrics());
    awaited(300, || match looked(&held.metrics()) < first + 3.0 {
        true => Err("the loop stands still".to_owned()),
        false => Ok(()),
    });
    assert!(held.metrics().contains("evenkeel_webhook_delivered_total 0"), "{}", held.metrics());
    assert!(held.get("/healthz", "").0.starts_with("HTTP/1.1 200"));
    drop(stream);
    drop(loads);
}
