//! What one host's metrics say, reduced to what is shown: a fleet's pages are never in memory together.

use std::collections::{BTreeMap, HashMap};

use evenkeel_base::printable;

/// Share of the time in which it could run that somebody starved waits.
const STARVED_SHARE: f64 = 0.2;
/// Waits below this, percent of one CPU, starve no task.
const STARVED_PCT: f64 = 5.0;
/// Share of the CPU wanted by a host that its hypervisor takes before it is a finding.
const STOLEN_SHARE: f64 = 0.05;
/// The name by which a Prometheus' count of a host's owners is taken.
pub const COUNTED: &str = "evenkeel_owners_named";
/// The same of a host that a Prometheus knows, and cannot read.
pub const UNREAD: &str = "evenkeel_unread";
/// Owners of one page that are looked at, and findings of one host that are kept.
pub const MOST_OWNERS: usize = 10_000;
const MOST_FINDINGS: usize = 50;
/// Longest name kept, characters.
const LONGEST_NAME: usize = 200;
/// No host has more than this, percent of one CPU.
const MOST_PCT: f64 = 100.0 * 65_536.0;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Host {
    /// Its address, or Prometheus' `instance`.
    pub target: String,
    /// Why nothing is known of it.
    pub error: Option<String>,
    /// CPU used and taken by the hypervisor, percent of one CPU.
    pub busy_pct: Option<f64>,
    pub steal_pct: Option<f64>,
    /// Settings in force, by the loop's name for them.
    pub settings: Option<String>,
    /// Trials held, and those after which settings were in force.
    pub trials: Option<f64>,
    pub kept: Option<f64>,
    /// CPU that the change in force brings, percent of one CPU, with the ends of its interval.
    pub effect_cpu_pct: Option<f64>,
    pub effect_cpu_low_pct: Option<f64>,
    pub effect_cpu_high_pct: Option<f64>,
    pub promises: u64,
    pub broken: u64,
    /// Containers, pods and machines named.
    pub owners: u64,
    pub findings: Vec<Finding>,
    /// Owners that starve, and those that a quota holds back: all, also where not each is among the findings.
    pub starved: u64,
    /// See [`Self::starved`].
    pub throttled: u64,
    /// Values that cannot be: not numbers, negative, without bound.
    pub odd_values: u64,
    /// Values of owners beyond those that are looked at.
    pub left_out: u64,
}

/// Something wrong on a host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Finding {
    /// `starved`, `throttled`, `stolen` or `promise-broken`.
    pub rule: &'static str,
    /// Who: kind and name, empty for the host itself.
    pub kind: String,
    pub name: String,
    pub pod: String,
    /// CPU got, waited for, held back by a quota, percent of one CPU.
    pub cpu_pct: Option<f64>,
    pub wait_pct: Option<f64>,
    pub throttled_pct: Option<f64>,
    /// Waited of the time in which it could run, 0 to 1.
    pub wait_share: Option<f64>,
    /// `last look`, or `since start` where only counters are served.
    pub over: &'static str,
}

#[derive(Debug, Clone, Copy, Default)]
struct Rates {
    cpu: Option<f64>,
    wait: Option<f64>,
    throttled: Option<f64>,
}

type Key = (String, String, String);

/// A host's page while it is read.
#[derive(Debug, Default)]
pub struct Page {
    host: Host,
    /// By kind, name and pod: of gauges, percent; of counters, seconds.
    now: HashMap<Key, Rates>,
    ever: HashMap<Key, Rates>,
    broken: Vec<String>,
    lines: u64,
    /// How many owners there are, where only some were asked for.
    counted: Option<f64>,
}

impl Page {
    /// Takes one sample of a metric.
    pub fn take(&mut self, name: &str, labels: &BTreeMap<String, String>, value: f64) {
        let Some(name) = name.strip_prefix("evenkeel_") else { return };
        // That alone is known of who cannot be read.
        self.lines += u64::from(name != "unread");
        let host = &mut self.host;
        // What a gauge of an effect may be is negative, too.
        let odd = !value.is_finite() || value.abs() > 1e15 || (value < 0.0 && !name.starts_with("effect_"));
        if odd || (name.ends_with("_percent") && value.abs() > MOST_PCT) {
            host.odd_values += 1;
            return;
        }
        let label = |key: &str| labels.get(key).map_or_else(String::new, |text| short(text));
        let mut room = true;
        match name {
            "owners_named" => self.counted = Some(value),
            "host_busy_percent" => host.busy_pct = Some(value),
            "host_steal_percent" => host.steal_pct = Some(value),
            "trials_total" => host.trials = Some(value),
            "trials_kept_total" => host.kept = Some(value),
            "effect_cpu_percent" => host.effect_cpu_pct = Some(value),
            "effect_cpu_percent_low" => host.effect_cpu_low_pct = Some(value),
            "effect_cpu_percent_high" => host.effect_cpu_high_pct = Some(value),
            "settings_in_force" if value > 0.0 => host.settings = Some(label("name")),
            "guarantee_kept" => {
                host.promises += 1;
                if value == 0.0 {
                    host.broken += 1;
                    if self.broken.len() < MOST_FINDINGS {
                        self.broken.push(label("name"));
                    }
                }
            }
            "cpu_percent" | "wait_percent" | "throttled_percent" => {
                let key = (label("kind"), label("name"), label("pod"));
                room = set(&mut self.now, key, name, value);
            }
            "cpu_seconds_total" | "cpu_wait_seconds_total" | "cpu_throttled_seconds_total" => {
                let (namespace, pod) = (label("namespace"), label("pod"));
                let pod =
                    if namespace.is_empty() || pod.is_empty() { pod } else { format!("{namespace}/{pod}") };
                // A service is in no container: what tells it from others is its cgroup.
                let (kind, owner) = match label("container") {
                    container if container.is_empty() && pod.is_empty() => ("service", label("id")),
                    container => ("container", container),
                };
                room = set(&mut self.ever, (kind.to_owned(), owner, pod), name, value);
            }
            "vm_cpu_seconds_total" | "vm_cpu_ready_seconds_total" => {
                let key = ("vm".to_owned(), label("vm"), String::new());
                room = set(&mut self.ever, key, name, value);
            }
            _ => {}
        }
        host.left_out += u64::from(!room);
    }

    /// Whether anything of evenkeel was among it.
    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }

    pub fn finish(self, target: String) -> Host {
        let Self { mut host, now, ever, broken, counted, lines } = self;
        host.target = short(&target);
        if lines == 0 {
            host.error = Some("Prometheus cannot read it (`up` is 0)".to_owned());
        }
        let (owners, over) = if now.is_empty() { (ever, "since start") } else { (now, "last look") };
        host.owners = counted.map_or(owners.len() as u64, |counted| counted as u64);
        let mut found: Vec<Finding> = owners
            .into_iter()
            // A pod is its containers, which are named, too.
            .filter(|((kind, ..), _)| kind != "pod")
            .filter_map(|(key, rates)| Finding::of(key, rates, over))
            .collect();
        let share = |finding: &Finding| finding.wait_share.unwrap_or(0.0);
        found.sort_by(|a, b| {
            let by_wait = b.wait_pct.unwrap_or(0.0).total_cmp(&a.wait_pct.unwrap_or(0.0));
            by_wait.then(share(b).total_cmp(&share(a))).then_with(|| a.name.cmp(&b.name))
        });
        let count = |rule| found.iter().filter(|finding| finding.rule == rule).count() as u64;
        (host.starved, host.throttled) = (count("starved"), count("throttled"));
        found.truncate(MOST_FINDINGS);
        for name in broken {
            let bare = Finding { name, kind: "promise".to_owned(), ..Finding::bare("promise-broken") };
            found.insert(0, bare);
        }
        if let (Some(busy), Some(steal)) = (host.busy_pct, host.steal_pct)
            && steal > STOLEN_SHARE * (busy + steal)
            && steal >= 1.0
        {
            found
                .insert(0, Finding { cpu_pct: Some(busy), wait_pct: Some(steal), ..Finding::bare("stolen") });
        }
        host.findings = found;
        host
    }
}

impl Finding {
    fn bare(rule: &'static str) -> Self {
        Self { rule, over: "last look", ..Self::default() }
    }

    /// Starved, or held back by a quota: most of the wait then is the quota's.
    fn of((kind, name, pod): Key, rates: Rates, over: &'static str) -> Option<Self> {
        let (cpu, wait) = (rates.cpu?, rates.wait?);
        let share = wait / (cpu + wait);
        // Seconds since the start say nothing about how much it is at a time.
        let enough = over != "last look" || wait >= STARVED_PCT;
        if !(share >= STARVED_SHARE && enough) {
            return None;
        }
        let throttled = rates.throttled.filter(|throttled| *throttled >= wait / 2.0);
        let rule = if throttled.is_some() { "throttled" } else { "starved" };
        let known = |value: Option<f64>| value.filter(|_| over == "last look");
        Some(Self {
            rule,
            kind,
            name,
            pod,
            cpu_pct: known(Some(cpu)),
            wait_pct: known(Some(wait)),
            throttled_pct: known(rates.throttled),
            wait_share: Some(share),
            over,
        })
    }
}

/// Whether there was room for it.
fn set(all: &mut HashMap<Key, Rates>, key: Key, name: &str, value: f64) -> bool {
    if all.len() >= MOST_OWNERS && !all.contains_key(&key) {
        return false;
    }
    let rates = all.entry(key).or_default();
    match name {
        "cpu_percent" | "cpu_seconds_total" | "vm_cpu_seconds_total" => rates.cpu = Some(value),
        "wait_percent" | "cpu_wait_seconds_total" | "vm_cpu_ready_seconds_total" => rates.wait = Some(value),
        _ => rates.throttled = Some(value),
    }
    true
}

/// A name as it may be shown: somebody else wrote it.
fn short(text: &str) -> String {
    let cut: String = text.chars().take(LONGEST_NAME).collect();
    printable(&cut).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(page: &str) -> Host {
        let mut read = Page::default();
        page.lines().filter_map(evenkeel_fetch::prometheus::line).for_each(|(n, l, v)| read.take(&n, &l, v));
        read.finish("h".to_owned())
    }

    #[test]
    fn who_waits_is_starved_and_who_is_held_back_is_throttled() {
        let host = host(
            "evenkeel_host_busy_percent 150\nevenkeel_host_steal_percent 50\n\
             evenkeel_cpu_percent{kind=\"container\",name=\"web\",pod=\"\"} 30\n\
             evenkeel_wait_percent{kind=\"container\",name=\"web\",pod=\"\"} 20\n\
             evenkeel_cpu_percent{kind=\"container\",name=\"job\",pod=\"ns/p\"} 20\n\
             evenkeel_wait_percent{kind=\"container\",name=\"job\",pod=\"ns/p\"} 80\n\
             evenkeel_throttled_percent{kind=\"container\",name=\"job\",pod=\"ns/p\"} 70\n\
             evenkeel_cpu_percent{kind=\"pod\",name=\"ns/p\",pod=\"ns/p\"} 20\n\
             evenkeel_wait_percent{kind=\"pod\",name=\"ns/p\",pod=\"ns/p\"} 80\n\
             evenkeel_cpu_percent{kind=\"vm\",name=\"calm\",pod=\"\"} 90\n\
             evenkeel_wait_percent{kind=\"vm\",name=\"calm\",pod=\"\"} 4\n\
             evenkeel_guarantee_kept{name=\"pid:7\"} 0\nevenkeel_guarantee_kept{name=\"pid:8\"} 1\n",
        );
        let found: Vec<(&str, &str)> = host.findings.iter().map(|f| (f.rule, f.name.as_str())).collect();
        assert_eq!(
            found,
            [("stolen", ""), ("promise-broken", "pid:7"), ("throttled", "job"), ("starved", "web")]
        );
        assert_eq!((host.promises, host.broken, host.owners), (2, 1, 4));
        assert!((host.findings[3].wait_share.unwrap() - 0.4).abs() < 1e-12);
    }

    #[test]
    fn all_who_starve_are_counted_though_not_all_are_listed() {
        let one = |at: usize| {
            let labels = format!("{{kind=\"container\",name=\"c{at}\",pod=\"\"}}");
            format!("evenkeel_cpu_percent{labels} 10\nevenkeel_wait_percent{labels} 90\n")
        };
        let host = host(&(0..MOST_FINDINGS + 7).map(one).collect::<String>());
        assert_eq!((host.findings.len(), host.starved, host.throttled), (MOST_FINDINGS, 57, 0));
    }

    #[test]
    fn owners_beyond_those_looked_at_are_told_of_and_a_prometheus_counts_those_not_asked_for() {
        let one =
            |at: usize| format!("evenkeel_cpu_percent{{kind=\"container\",name=\"c{at}\",pod=\"\"}} 10\n");
        let page: String = (0..MOST_OWNERS + 3).map(one).collect();
        let many = host(&page);
        assert_eq!((many.owners, many.left_out), (MOST_OWNERS as u64, 3));
        let asked = host(&format!("{COUNTED} 200\n{}", one(1)));
        assert_eq!((asked.owners, asked.left_out), (200, 0));
    }

    #[test]
    fn counters_alone_give_shares_and_no_rates() {
        let host = host(
            "evenkeel_cpu_seconds_total{namespace=\"ns\",pod=\"p\",container=\"c\"} 600\n\
             evenkeel_cpu_wait_seconds_total{namespace=\"ns\",pod=\"p\",container=\"c\"} 400\n",
        );
        let [finding] = host.findings.as_slice() else { panic!("{host:?}") };
        assert_eq!((finding.rule, finding.pod.as_str(), finding.over), ("starved", "ns/p", "since start"));
        assert_eq!((finding.cpu_pct, finding.wait_share), (None, Some(0.4)));
    }

    #[test]
    fn services_and_machines_are_told_apart() {
        let service = |id: &str, cpu: f64, wait: f64| {
            let labels = format!("{{namespace=\"\",pod=\"\",container=\"\",id=\"{id}\"}}");
            format!(
                "evenkeel_cpu_seconds_total{labels} {cpu}\nevenkeel_cpu_wait_seconds_total{labels} {wait}\n"
            )
        };
        let host = host(
            &(service("/a", 10.0, 90.0)
                + &service("/b", 50.0, 1.0)
                + "evenkeel_vm_cpu_seconds_total{vm=\"db\"} 30\nevenkeel_vm_cpu_ready_seconds_total{vm=\"db\"} 70\n"),
        );
        let found: Vec<(&str, &str)> =
            host.findings.iter().map(|f| (f.kind.as_str(), f.name.as_str())).collect();
        assert_eq!((found.as_slice(), host.owners), ([("service", "/a"), ("vm", "db")].as_slice(), 3));
    }

    #[test]
    fn values_that_cannot_be_are_counted_and_not_believed() {
        let host = host(
            "evenkeel_host_busy_percent NaN\nevenkeel_host_steal_percent -3\nevenkeel_trials_total +Inf\n\
             evenkeel_cpu_percent{kind=\"vm\",name=\"a\\n\x1b[31mb\"} 1e300\nevenkeel_effect_cpu_percent -2\nother 7\n",
        );
        assert_eq!((host.odd_values, host.busy_pct, host.steal_pct, host.trials), (4, None, None, None));
        assert_eq!(host.effect_cpu_pct, Some(-2.0));
        assert!(!short("a\n\x1b[31mb").contains(['\n', '\x1b']));
    }
}
