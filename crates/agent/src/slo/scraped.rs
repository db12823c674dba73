//! Services that say of themselves where they count their requests, by annotations of their pod or a label of their container:
//! found by what the runtimes say, asked in turn by one thread that nobody waits for.
//!
//! What is asked is always the pod's or the container's own address, as its runtime says it: who writes an annotation chooses a
//! port and a path, and no host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use evenkeel_base::text::{cut, printable};
use evenkeel_fetch::http::{Request, get_with};
use evenkeel_observe::Endpoints;
use evenkeel_observe::runtimes::{Address, RuntimeFacts, ask_located};

use super::RequestSlo;
use super::page::PageReader;
use super::scraper::{MOST, WITHIN, words};

/// Label of a container: `:PORT/PATH` of its metrics.
const METRICS: &str = "evenkeel.io/metrics";
/// Annotation or label: the histogram of durations, without `_bucket`.
const HISTOGRAM: &str = "evenkeel.io/duration-histogram";
/// Annotations of a pod, as many set-ups of Prometheus have them.
const SCRAPE: (&str, &str) = ("prometheus.io/scrape", "true");
const SCHEME: &str = "prometheus.io/scheme";
const PORT: &str = "prometheus.io/port";
const PATH: &str = "prometheus.io/path";
/// Where metrics are, where only a port is named.
const USUAL_PATH: &str = "/metrics";
/// Histograms that are looked for where none is named, the first that is there.
const KNOWN: [&str; 5] = [
    "http_request_duration_seconds",
    "http_server_request_duration_seconds",
    "http_server_requests_seconds",
    "grpc_server_handling_seconds",
    "request_duration_seconds",
];
const MOST_ENDPOINTS: usize = 32;
/// Buckets of a histogram: more are no histogram of durations, and would all be on our page.
const MOST_BUCKETS: usize = 200;
/// Longest path and name of a histogram, bytes.
const MOST_BYTES: usize = 256;
const MOST_NOTES: usize = 20;
/// Time between two rounds ...
const EVERY: Duration = Duration::from_secs(15);
/// ... but after the first: what is counted is the growth from page to page.
const SOON: Duration = Duration::from_secs(1);

/// Requests of one service since it was asked first.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceRequests {
    /// `pod:NAMESPACE/NAME` or `container:NAME`.
    pub name: String,
    /// Empty where there is none.
    pub namespace: String,
    /// Empty where there is none.
    pub pod: String,
    /// Empty where a pod says it for all of its containers.
    pub container: String,
    /// Requests up to each bound, seconds.
    pub within: Vec<(f64, f64)>,
    pub all: f64,
    /// Of these the ones that failed, where the endpoint says it.
    pub failed: Option<f64>,
}

/// Looks for endpoints and asks them from now on, in a thread of its own, which ends with the process. What was counted, and what
/// there is to say once, goes to `tell` after each round.
pub fn start(
    runtimes: Endpoints,
    mut tell: impl FnMut(Vec<ServiceRequests>, Vec<String>) + Send + 'static,
) -> std::io::Result<()> {
    let ask = move || {
        let mut services = Services::default();
        let mut pace = SOON;
        loop {
            let began = Instant::now();
            let notes = services.round(ask_located(&runtimes, SCRAPE).as_ref());
            tell(services.requests(), notes);
            std::thread::sleep(pace.saturating_sub(began.elapsed()).max(SOON));
            pace = EVERY;
        }
    };
    std::thread::Builder::new().name("scrape".to_owned()).stack_size(512 << 10).spawn(ask).map(drop)
}

/// One endpoint. Another uid, address, path or histogram is another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    /// Of the pod, or the container's id.
    uid: String,
    namespace: String,
    pod: String,
    container: String,
    address: SocketAddr,
    path: String,
    histogram: Option<String>,
}

impl Target {
    fn url(&self) -> String {
        format!("http://{}{}", self.address, self.path)
    }

    fn name(&self) -> String {
        if self.pod.is_empty() { of_container(&self.container) } else { of_pod(&self.namespace, &self.pod) }
    }
}

fn of_pod(namespace: &str, pod: &str) -> String {
    format!("pod:{namespace}/{pod}")
}

fn of_container(name: &str) -> String {
    format!("container:{name}")
}

/// Endpoints that pods and containers name; and by uid, why others cannot be asked.
fn targets(facts: &RuntimeFacts) -> (Vec<Target>, BTreeMap<String, String>) {
    let (mut found, mut faults) = (Vec::new(), BTreeMap::new());
    let mut add = |uid: &str, name: String, target: Result<Target, String>| match target {
        Ok(target) => found.push(target),
        Err(why) => {
            faults.insert(uid.to_owned(), format!("{name} is not asked for its requests: {why}"));
        }
    };
    for (uid, pod) in &facts.pods {
        if value(&pod.annotations, SCRAPE.0) != Some(SCRAPE.1) {
            continue;
        }
        let target = of_annotations(&pod.annotations).and_then(|(port, path)| {
            Ok(Target {
                uid: uid.clone(),
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                container: String::new(),
                address: socket(pod.address, port)?,
                path,
                histogram: histogram(&pod.annotations)?,
            })
        });
        add(uid, of_pod(&pod.namespace, &pod.name), target);
    }
    for (id, container) in facts.containers.iter().filter(|(_, container)| container.pod.is_none()) {
        let Some(label) = value(&container.labels, METRICS) else { continue };
        let target = of_label(label).and_then(|(port, path)| {
            Ok(Target {
                uid: id.clone(),
                namespace: String::new(),
                pod: String::new(),
                container: container.name.clone(),
                address: socket(container.address, port)?,
                path,
                histogram: histogram(&container.labels)?,
            })
        });
        add(id, of_container(&container.name), target);
    }
    found.sort();
    (found, faults)
}

fn value<'a>(pairs: &'a [(String, String)], key: &str) -> Option<&'a str> {
    pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

fn of_annotations(annotations: &[(String, String)]) -> Result<(u16, String), String> {
    if let Some(scheme) = value(annotations, SCHEME).filter(|scheme| *scheme != "http") {
        return Err(format!("{SCHEME} is {scheme:?}, and only http is asked"));
    }
    let named = value(annotations, PORT).ok_or_else(|| format!("{PORT} is missing"))?;
    let path = path(value(annotations, PATH).unwrap_or(USUAL_PATH)).map_err(|why| format!("{PATH} {why}"))?;
    Ok((port(named).map_err(|why| format!("{PORT} {why}"))?, path))
}

fn of_label(label: &str) -> Result<(u16, String), String> {
    let rest = label.strip_prefix(':').ok_or_else(|| format!("{METRICS} is {label:?}, not :PORT/PATH"))?;
    let (named, after) = rest.find('/').map_or((rest, USUAL_PATH), |at| rest.split_at(at));
    let said = |why| format!("{METRICS} {why}");
    Ok((port(named).map_err(said)?, path(after).map_err(said)?))
}

fn port(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|port| *port > 0 && text.bytes().all(|byte| byte.is_ascii_digit()));
    number.ok_or_else(|| format!("names no port: {text:?}"))
}

/// What can stand in a request as it is.
fn path(text: &str) -> Result<String, String> {
    if text.len() > MOST_BYTES || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("names no path: {text:?}"));
    }
    Ok(if text.starts_with('/') { text.to_owned() } else { format!("/{text}") })
}

fn histogram(pairs: &[(String, String)]) -> Result<Option<String>, String> {
    let named = value(pairs, HISTOGRAM);
    match named.filter(|name| name.is_empty() || name.len() > MOST_BYTES) {
        Some(name) => Err(format!("{HISTOGRAM} names no histogram: {name:?}")),
        None => Ok(named.map(str::to_owned)),
    }
}

fn socket(address: Option<Address>, port: u16) -> Result<SocketAddr, String> {
    let address = address.ok_or("its runtime says no address of it")?;
    Ok(SocketAddr::new(address.ip(), port))
}

/// What is known of one endpoint.
#[derive(Debug, Default)]
struct Asked {
    reader: Option<PageReader>,
    /// That it does not answer as it should was said.
    said: bool,
}

impl Asked {
    fn ask(&mut self, target: &Target) -> Result<(), String> {
        let request = Request { within: WITHIN, most: MOST, token: None, trust: None };
        // Redirects are answers with another status: nobody follows them.
        let page = get_with(&target.url(), request).map_err(|error| words(&error))?;
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => {
                let named = target.histogram.clone().or_else(|| known(&page));
                let histogram = named.ok_or_else(|| {
                    let names = KNOWN.join(", ");
                    format!("its page has none of {names}; {HISTOGRAM} can name another")
                })?;
                self.reader.insert(PageReader::new(&RequestSlo {
                    endpoint: target.url(),
                    histogram,
                    labels: BTreeMap::new(),
                    unit_s: 1.0,
                    // Nobody promised anything: these are not looked at.
                    quantile: 0.5,
                    bound_s: 1.0,
                }))
            }
        };
        let taken = reader.take(&page).map(drop);
        let buckets = reader.buckets_before();
        if buckets > MOST_BUCKETS {
            self.reader = None;
            return Err(format!("its histogram has {buckets} buckets, more than {MOST_BUCKETS}"));
        }
        taken
    }
}

/// The first of the usual histograms that a page has.
fn known(page: &str) -> Option<String> {
    let is_there = |name: &&str| {
        page.lines().any(|line| {
            let rest = line.strip_prefix(*name).and_then(|rest| rest.strip_prefix("_bucket"));
            rest.is_some_and(|rest| rest.starts_with('{'))
        })
    };
    KNOWN.iter().find(|name| is_there(name)).map(|name| (*name).to_owned())
}

#[derive(Debug, Default)]
struct Services {
    asked: BTreeMap<Target, Asked>,
    /// Uids of which it was said that they cannot be asked.
    said: BTreeSet<String>,
    said_more: bool,
}

impl Services {
    /// Takes what the runtimes say, where they say something, and asks everybody; what there is to say.
    fn round(&mut self, facts: Option<&RuntimeFacts>) -> Vec<String> {
        let mut notes = facts.map(|facts| self.choose(facts)).unwrap_or_default();
        for (target, asked) in &mut self.asked {
            let Err(why) = asked.ask(target) else { continue };
            if !std::mem::replace(&mut asked.said, true) {
                let (url, name) = (target.url(), target.name());
                notes.push(format!("{url} of {name} says nothing of its requests: {why}"));
            }
        }
        notes.truncate(MOST_NOTES);
        // Names and pages are others'.
        notes.iter().map(|note| cut(&printable(note).replace('\n', " "), 500)).collect()
    }

    /// Those who are asked already stay: nobody is crowded out by who comes later.
    fn choose(&mut self, facts: &RuntimeFacts) -> Vec<String> {
        let (found, faults) = targets(facts);
        let (old, new): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|target| self.asked.contains_key(target));
        let left_out = (old.len() + new.len()).saturating_sub(MOST_ENDPOINTS);
        let mut before = std::mem::take(&mut self.asked);
        for target in old.into_iter().chain(new).take(MOST_ENDPOINTS) {
            let asked = before.remove(&target).unwrap_or_default();
            self.asked.insert(target, asked);
        }
        self.said.retain(|uid| faults.contains_key(uid));
        let mut notes = Vec::new();
        if left_out > 0 && !std::mem::replace(&mut self.said_more, true) {
            notes.push(format!(
                "{left_out} services are not asked for their requests: at most {MOST_ENDPOINTS} are"
            ));
        }
        for (uid, fault) in faults {
            if self.said.insert(uid) {
                notes.push(fault);
            }
        }
        notes
    }

    fn requests(&self) -> Vec<ServiceRequests> {
        let of = |(target, asked): (&Target, &Asked)| {
            let reader = asked.reader.as_ref()?;
            let mut within = reader.counted().to_vec();
            let (_, all) = within.pop()?;
            Some(ServiceRequests {
                name: target.name(),
                namespace: target.namespace.clone(),
                pod: target.pod.clone(),
                container: target.container.clone(),
                within,
                all,
                failed: reader.failed(),
            })
        };
        self.asked.iter().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests;
