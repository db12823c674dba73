//! `slo` of a service: its requests are read from an endpoint that this test is, they decide, and what answers no more is said.
//! Needs root.

#[path = "serve/endpoint.rs"]
mod endpoint;
mod scene;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use endpoint::Endpoint;
use evenkeel_fetch::http::{Request, get_with};
use evenkeel_fetch::prometheus;
use evenkeel_linux::testing::awaited;
use scene::{Agent, Group, Process, begin, configured, run, snapshot, until};
use serde_json::Value;

/// The endpoint of a service with a thousand requests a second, of which more are slow while the settings of a cgroup are not what
/// they were. `default` and `changed`: shares of slow requests.
fn endpoint(group: &Arc<Group>, default: f64, changed: f64) -> Endpoint {
    let counts = Arc::new(Mutex::new((0.0, 0.0)));
    // It counts until the endpoint is gone.
    let (counted, group) = (Arc::downgrade(&counts), group.clone());
    std::thread::spawn(move || {
        let (found, mut last) = (group.files(), Instant::now());
        while let Some(counts) = counted.upgrade() {
            std::thread::sleep(Duration::from_millis(5));
            let share = if group.files() == found { default } else { changed };
            let more = 1000.0 * last.elapsed().as_secs_f64();
            last = Instant::now();
            let mut counts = counts.lock().unwrap();
            *counts = (counts.0 + more, counts.1 + share * more);
        }
    });
    Endpoint::start(move || {
        let (all, slow): (f64, f64) = *counts.lock().unwrap();
        (all as u64, (all - slow) as u64)
    })
}

/// A service that waits, and work that takes whatever it gets.
fn loads(api: &Group, work: &Group) -> Vec<Process> {
    let program = env!("CARGO_BIN_EXE_evenkeel");
    let cpus = evenkeel_linux::sys::usable_cpus().len();
    let spin = ["load", "spin", "--seconds", "600"];
    let duty = ["load", "duty", "--percent", "30", "--period", "10ms", "--kind", "open", "--seconds", "600"];
    let mut all: Vec<Process> = (0..3 * cpus).map(|_| work.start(program, &spin)).collect();
    all.push(api.start(program, &duty));
    all
}

/// How often something was said.
fn times(agent: &Agent, words: &str) -> usize {
    agent.words().matches(words).count()
}

/// Waits until the agent says something; panics after so long.
#[track_caller]
fn said(agent: &Agent, words: &str, within: Duration) {
    awaited(within.as_secs(), || match times(agent, words) {
        0 => Err(format!("waited in vain for {words:?}: {}", agent.words())),
        _ => Ok(()),
    });
}

#[test]
fn requests_decide_and_an_endpoint_that_hangs_leaves_it_to_waits() {
    let (_turn, dir) = begin();
    let (api, work) = (Group::new("slo-api"), Arc::new(Group::new("slo-work")));
    work.set_weight(3000, 300);
    let _loads = loads(&api, &work);
    // What is promised is broken, so that there is something to do; but whatever is done makes it worse, although waits shorten.
    let endpoint = endpoint(&work, 0.1, 0.6);
    let toml = format!(
        "[run]\ninterval = \"200ms\"\n[guard]\nwait_floor = 0.3\noutside_cpu_loss = 0.5\n\
         [[service]]\nscope = \"{}\"\nslo = {{ endpoint = \"http://{}/metrics\", histogram = \"t_seconds\", \
         quantile = 0.95, bound = \"60ms\" }}\n[[background]]\nscope = \"{}\"\n",
        api.scope(),
        endpoint.address,
        work.scope()
    );
    let config = configured(dir.path(), &toml);
    let before = snapshot(&[&api, &work]);
    let listen = ["--listen", "127.0.0.1:0", "-o", "json"];
    let args = [&["run", "--config", &config, "--for", "300s"], &listen[..]].concat();
    let mut agent = Agent::run(dir.path(), &args);
    let minutes = Duration::from_secs(150);
    said(&agent, "no bucket of t_seconds ends at 60 ms: requests beyond 50 ms count as slow", minutes);
    // One candidate or the other was confirmed, and its requests forbade it.
    said(&agent, &format!("{}, which is protected, answers", api.scope()), minutes);
    said(&agent, "kept: nothing tried is shown to be better", minutes);
    assert_eq!(snapshot(&[&api, &work]).1[1], before.1[1], "{}", agent.words());

    let status = |agent: &Agent| -> Value {
        let document = run(dir.path(), &["status", "-o", "json"]).json();
        assert_eq!(document["slos"].as_array().map(Vec::len), Some(1), "{document:#} {}", agent.words());
        document["slos"][0].clone()
    };
    // What is recorded may still be of the trial.
    let near = |slo: &Value, key: &str| slo[key].as_f64().is_some_and(|pct| (pct - 10.0).abs() < 3.0);
    until("status says how its requests stand", || {
        let slo = status(&agent);
        slo["judged_by"] == "requests" && near(&slo, "slow_pct") && near(&slo, "default_slow_pct")
    });
    let slo = status(&agent);
    assert_eq!((&slo["name"], &slo["state"]), (&api.scope().into(), &"broken".into()), "{slo:#}");
    assert_eq!((&slo["bound_ms"], &slo["edge_ms"]), (&60.0.into(), &50.0.into()), "{slo:#}");
    assert!(run(dir.path(), &["status"]).stdout.contains("SLO OF"));
    let metric = |name: &str| -> Option<f64> {
        let words = agent.words();
        let address = words.lines().find_map(|line| line.split_once("listening on "))?.1.to_owned();
        let request = Request { within: Duration::from_secs(30), most: 8 << 20, token: None, trust: None };
        let page = get_with(&format!("{address}/metrics"), request).unwrap();
        let name = format!("evenkeel_service_{name}");
        let of_service = |(found, labels, value): (String, BTreeMap<String, String>, f64)| {
            (found == name && labels["name"] == api.scope()).then_some(value)
        };
        page.lines().filter_map(prometheus::line).find_map(of_service)
    };
    assert_eq!((metric("slo_judged"), metric("slo_kept")), (Some(1.0), Some(0.0)));
    assert!(
        metric("slo_slow_ratio").is_some_and(|share| (share - 0.1).abs() < 0.03),
        "{:?}",
        metric("slo_slow_ratio")
    );
    assert!(metric("slo_requests").is_some_and(|all| all > 100.0), "{:?}", metric("slo_requests"));
    assert!(
        metric("slo_answer_age_seconds").is_some_and(|age| age >= 0.0),
        "{:?}",
        metric("slo_answer_age_seconds")
    );

    // What the endpoint counts stands there, too, with its buckets.
    let counted = |name: &str| metric(name).unwrap_or_else(|| panic!("no {name}"));
    let (quick, all) =
        (counted("request_duration_seconds_bucket"), counted("request_duration_seconds_count"));
    assert!(0.0 < quick && quick < all && all <= counted("requests_total"), "{quick} of {all}");

    endpoint.hangs.store(true, Ordering::Relaxed);
    said(&agent, "is judged by its waits", minutes);
    until("status says that waits judge", || status(&agent)["judged_by"] == "waits");
    assert!(
        status(&agent)["why"].as_str().unwrap().contains("does not answer within"),
        "{:#}",
        status(&agent)
    );
    endpoint.hangs.store(false, Ordering::Relaxed);
    said(&agent, "is judged by its requests again", minutes);
    assert_eq!(
        (times(&agent, "is judged by its waits"), times(&agent, "count as slow")),
        (1, 1),
        "{}",
        agent.words()
    );

    let document = agent.end_by(rustix::process::Signal::INT).json();
    scene::assert_all_back(&document);
    assert_eq!(document["slos"][0]["judged_by"], "requests", "{document:#}");
    assert_eq!(snapshot(&[&api, &work]), before);
}
