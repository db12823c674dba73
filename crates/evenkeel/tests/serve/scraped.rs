//! `serve --scrape-services` with a container engine that is played: it names a container whose service counts requests.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::agent::Serve;
use super::endpoint::Endpoint;
use super::promtool;

/// Answers at a socket as Docker does when it is asked for its version and its containers.
fn play_docker(socket: &Path, containers: String) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = [0; 4096];
            let n = stream.read(&mut asked).unwrap_or(0);
            let is_list = String::from_utf8_lossy(&asked[..n]).contains("/containers/json");
            let body = if is_list { &containers } else { r#"{"ApiVersion":"1.43","MinAPIVersion":"1.24"}"# };
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: ";
            let _ = stream.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes());
        }
    });
}

#[test]
fn services_that_say_where_are_asked_when_that_is_wanted() {
    let asked = AtomicU64::new(0);
    let endpoint = Endpoint::start(move || {
        let all = 100 * asked.fetch_add(1, Ordering::Relaxed);
        (all, all * 9 / 10)
    });
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("docker.sock");
    let port = endpoint.address.port();
    let container = |id: &str, name: &str, labels: &str| {
        format!(
            r#"{{"Id":"{id}","Names":["/{name}"],"HostConfig":{{"NetworkMode":"host"}},"Labels":{{{labels}}}}}"#
        )
    };
    let histogram = r#""evenkeel.io/duration-histogram":"t_seconds""#;
    let web =
        container("a1", "scraped-web", &format!(r#""evenkeel.io/metrics":":{port}/metrics",{histogram}"#));
    let lost = container("a2", "scraped-lost", r#""evenkeel.io/metrics":"evil.example:80/""#);
    play_docker(&socket, format!("[{web},{lost}]"));
    let host = format!("unix://{}", socket.display());
    let serve = |options: &[&str]| {
        let args = [&["serve", "--listen", "127.0.0.1:0", "--blame", "off"], options].concat();
        Serve::command_with(&args, &[("DOCKER_HOST", &host)])
    };
    let labels = r#"name="container:scraped-web",namespace="",pod="",container="scraped-web""#;
    let scraping = serve(&["--scrape-services"]);
    let page = scraping.metrics_with(&format!("evenkeel_service_requests_total{{{labels}}} 100"));
    promtool(&page);
    let quick = format!(r#"evenkeel_service_request_duration_seconds_bucket{{{labels},le="0.05"}} 90"#);
    assert!(page.contains(&quick), "{page}");
    assert!(
        !page.contains(&format!("evenkeel_service_request_errors_total{{{labels}")),
        "nobody says it: {page}"
    );
    let said = scraping.said();
    let why = "container:scraped-lost is not asked for its requests: evenkeel.io/metrics is \"evil.example:80/\", not :PORT/PATH";
    assert_eq!(said.matches(why).count(), 1, "{said}");

    // Nobody is asked unless that is wanted.
    let silent = serve(&[]);
    let page = silent.metrics_with("evenkeel_host_busy_percent");
    assert!(!page.contains("scraped-web") && !silent.said().contains("scraped-lost"), "{page}");
}
