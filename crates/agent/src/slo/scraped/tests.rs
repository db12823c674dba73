//! Who is asked where, and what hostile services do to that.

use std::io::{Read, Write};
use std::net::TcpListener;

use evenkeel_observe::runtimes::{ContainerFacts, PodFacts};

use super::super::tests::{Endpoint, Mode};
use super::*;

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn add_pod(facts: &mut RuntimeFacts, name: &str, address: Option<Address>, annotations: &[(&str, &str)]) {
    let annotations = pairs(annotations);
    let pod = PodFacts { namespace: "shop".into(), name: name.into(), annotations, address };
    facts.pods.insert(name.into(), pod);
}

fn add_container(facts: &mut RuntimeFacts, name: &str, address: Option<Address>, labels: &[(&str, &str)]) {
    let (labels, runtime) = (pairs(labels), "docker".to_owned());
    let container = ContainerFacts { name: name.into(), runtime, labels, pod: None, address };
    facts.containers.insert(name.into(), container);
}

fn own(ip: &str) -> Option<Address> {
    Some(Address::own(ip).unwrap())
}

const ON: (&str, &str) = SCRAPE;

#[test]
fn pods_and_containers_say_where_on_their_own_address() {
    let mut facts = RuntimeFacts::default();
    add_pod(&mut facts, "web", own("10.0.0.7"), &[ON, (PORT, "9100"), (PATH, "stats?a=b"), (HISTOGRAM, "t")]);
    add_pod(&mut facts, "node", Some(Address::Host), &[ON, (PORT, "80"), (SCHEME, "http")]);
    add_pod(&mut facts, "six", own("fd00::1"), &[ON, (PORT, "80")]);
    add_pod(&mut facts, "off", own("10.0.0.8"), &[(SCRAPE.0, "false"), (PORT, "80")]);
    add_pod(&mut facts, "quiet", own("10.0.0.9"), &[]);
    add_container(&mut facts, "db", own("172.17.0.2"), &[(METRICS, ":9187/m")]);
    add_container(&mut facts, "plain", own("172.17.0.3"), &[(METRICS, ":1")]);
    add_container(&mut facts, "kubelets", own("172.17.0.4"), &[(METRICS, ":2")]);
    facts.containers.get_mut("kubelets").unwrap().pod = Some("web".into());
    let (found, faults) = targets(&facts);
    let said: Vec<_> = found.iter().map(|target| (target.name(), target.url())).collect();
    let said: Vec<_> = said.iter().map(|(name, url)| (name.as_str(), url.as_str())).collect();
    assert_eq!(
        said,
        [
            ("container:db", "http://172.17.0.2:9187/m"),
            ("pod:shop/node", "http://127.0.0.1:80/metrics"),
            ("container:plain", "http://172.17.0.3:1/metrics"),
            ("pod:shop/six", "http://[fd00::1]:80/metrics"),
            ("pod:shop/web", "http://10.0.0.7:9100/stats?a=b"),
        ]
    );
    assert_eq!(found[4].histogram.as_deref(), Some("t"));
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn nobody_names_a_host_and_who_tries_is_told_of_once() {
    for ip in ["127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "224.0.0.1", "::ffff:127.0.0.1", "web", ""] {
        assert_eq!(Address::own(ip), None, "{ip}");
    }
    let mut facts = RuntimeFacts::default();
    let labels = [
        "evil.example:80/x",
        "http://evil/",
        ":80@evil.example/x",
        ":@evil:80/",
        ":0/x",
        ":+80/x",
        ":65536/",
        ":80/a b",
        ":80/x\r\nHost: evil",
        ":",
        "",
    ];
    for (at, label) in labels.iter().enumerate() {
        add_container(&mut facts, &format!("c{at}"), own("172.17.0.2"), &[(METRICS, label)]);
    }
    add_container(&mut facts, "nowhere", None, &[(METRICS, ":80/")]);
    add_pod(&mut facts, "tls", own("10.0.0.7"), &[ON, (PORT, "443"), (SCHEME, "https")]);
    add_pod(&mut facts, "portless", own("10.0.0.7"), &[ON]);
    add_pod(&mut facts, "long", own("10.0.0.7"), &[ON, (PORT, "1"), (PATH, &"x".repeat(300))]);
    let (found, faults) = targets(&facts);
    assert_eq!(found, []);
    assert_eq!(faults.len(), labels.len() + 4, "{faults:#?}");
    let tls = "pod:shop/tls is not asked for its requests: prometheus.io/scheme is \"https\", and only http is asked";
    assert_eq!(faults["tls"], tls);
    let mut services = Services::default();
    let notes = services.round(Some(&facts));
    assert_eq!(notes.len(), faults.len());
    assert!(notes.iter().all(|note| !note.contains(char::is_control)), "{notes:?}");
    assert_eq!(services.round(Some(&facts)), Vec::<String>::new());
}

/// A container on the host's network with an endpoint there.
fn add_endpoint(facts: &mut RuntimeFacts, name: &str, port: u16) {
    let label = format!(":{port}/metrics");
    add_container(facts, name, Some(Address::Host), &[(METRICS, &label), (HISTOGRAM, "t_seconds")]);
}

#[test]
fn who_hangs_floods_or_lies_is_told_of_once_and_the_others_are_counted() {
    let (honest, hostile) = (Endpoint::start(), Endpoint::start());
    for (mode, why) in [
        (Mode::Hangs, "does not answer within"),
        (Mode::Endless, "answers more than"),
        (Mode::NotANumber, "NaN"),
        (Mode::NotAscending, "counts less up to +Inf"),
        (Mode::NoHistogram, "no metric t_seconds_bucket"),
    ] {
        hostile.set(mode);
        let mut facts = RuntimeFacts::default();
        add_endpoint(&mut facts, "evil", hostile.port);
        add_endpoint(&mut facts, "web", honest.port);
        let mut services = Services::default();
        let notes = services.round(Some(&facts));
        assert!(notes.len() == 1 && notes[0].contains("container:evil"), "{notes:?}");
        assert!(notes[0].contains(why), "{notes:?}");
        assert_eq!(services.requests(), [], "growth takes two pages");
        // A runtime that does not answer leaves those that it named.
        assert_eq!(services.round(None), Vec::<String>::new());
        let requests = services.requests();
        let [web] = &requests[..] else { panic!("{requests:?}") };
        assert_eq!(
            (web.name.as_str(), web.container.as_str(), web.pod.as_str()),
            ("container:web", "web", "")
        );
        assert_eq!((&web.within[..], web.all, web.failed), (&[(0.05, 98.0)][..], 100.0, None));
        services.round(Some(&RuntimeFacts::default()));
        assert_eq!(services.requests(), [], "it is gone");
    }
}

/// Answers so often, each time what is made of how often it was asked.
fn serve(times: usize, answer: impl Fn(usize) -> String + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for at in 0..times {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            let _ = stream.write_all(answer(at).as_bytes());
        }
    });
    port
}

#[test]
fn no_redirect_is_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = elsewhere.local_addr().unwrap();
    let port = serve(1, move |_| format!("HTTP/1.1 302 Found\r\nLocation: http://{to}/\r\n\r\n"));
    let mut facts = RuntimeFacts::default();
    add_endpoint(&mut facts, "web", port);
    let notes = Services::default().round(Some(&facts));
    assert!(notes.len() == 1 && notes[0].contains("302"), "{notes:?}");
    elsewhere.set_nonblocking(true).unwrap();
    assert_eq!(elsewhere.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_usual_histogram_is_found_and_one_of_very_many_buckets_is_none() {
    let page = |at: usize| {
        let of = |code: u32, n: usize| {
            let series = format!("grpc_server_handling_seconds_bucket{{code=\"{code}\",le=");
            format!(
                "{series}\"0.1\"}} {n}\n{series}\"+Inf\"}} {n}\ngrpc_server_handling_seconds_count{{code=\"{code}\"}} {n}\n"
            )
        };
        let (good, bad) = (of(200, 10 * at), of(503, 2 * at));
        // Another name that begins alike, and a known one that comes later in the list.
        format!(
            "HTTP/1.0 200 OK\r\n\r\nhttp_request_duration_seconds_sum 1\n{good}{bad}request_duration_seconds_bucket{{le=\"+Inf\"}} 1\n"
        )
    };
    let many = |_| {
        let lines: String =
            (0..300).map(|le| format!("request_duration_seconds_bucket{{le=\"{le}\"}} 1\n")).collect();
        format!("HTTP/1.0 200 OK\r\n\r\n{lines}request_duration_seconds_bucket{{le=\"+Inf\"}} 1\n")
    };
    let none = |_| "HTTP/1.0 200 OK\r\n\r\nup 1\n".to_owned();
    let mut facts = RuntimeFacts::default();
    let ports = [("few", serve(2, page)), ("many", serve(2, many)), ("none", serve(2, none))];
    for (name, port) in ports {
        add_pod(&mut facts, name, Some(Address::Host), &[ON, (PORT, &port.to_string())]);
    }
    let mut services = Services::default();
    let notes = services.round(Some(&facts)).join("\n");
    assert!(notes.contains("301 buckets") && notes.contains("its page has none of http_request"), "{notes}");
    services.round(Some(&facts));
    let requests = services.requests();
    let [few] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((few.name.as_str(), few.all, few.failed), ("pod:shop/few", 12.0, Some(2.0)));
}

#[test]
fn who_comes_late_crowds_nobody_out() {
    let mut services = Services::default();
    let mut facts = RuntimeFacts::default();
    let add = |facts: &mut RuntimeFacts, name: String| {
        add_container(facts, &name, own("192.0.2.1"), &[(METRICS, ":80")]);
    };
    (0..MOST_ENDPOINTS).for_each(|at| add(&mut facts, format!("m{at:02}")));
    assert_eq!(services.choose(&facts), Vec::<String>::new());
    (0..100).for_each(|at| add(&mut facts, format!("a{at:02}")));
    let notes = services.choose(&facts);
    assert_eq!(notes, ["100 services are not asked for their requests: at most 32 are"]);
    assert_eq!(services.choose(&facts), Vec::<String>::new());
    assert!(services.asked.keys().all(|target| target.container.starts_with('m')));
    assert_eq!(services.asked.len(), MOST_ENDPOINTS);
}
