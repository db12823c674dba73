//! `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_agent::cost;
use evenkeel_base::Observation;
use evenkeel_base::PromiseState;
use evenkeel_base::run::{Effect, EffectNow, GuaranteeStatus, ProtectedStatus, SloStatus};
use evenkeel_base::stats::add_known;

use super::board::Board;
use super::distribution::{of_requests, of_waits};
use super::expose::{Kind, Page};
use super::owners::{self, Key, Owner, Use};

pub fn page(board: &Board) -> Page {
    let mut page = Page::default();
    host(&mut page, board);
    owners(&mut page, board);
    gauges(&mut page, board);
    the_loop(&mut page, board);
    own(&mut page, board);
    page
}

fn host(page: &mut Page, board: &Board) {
    let seen = board.observation.as_deref();
    page.gauge("evenkeel_host_cpus", "CPUs online", seen.map(|o| f64::from(o.host.cpus)));
    page.gauge(
        "evenkeel_host_tasks",
        "Threads seen, the kernel's included",
        seen.map(|o| o.tasks.len() as f64),
    );
    page.gauge(
        "evenkeel_host_busy_percent",
        "CPU used, percent of one CPU",
        seen.map(|seen| seen.host.busy_pct),
    );
    page.gauge(
        "evenkeel_host_steal_percent",
        "CPU taken by the hypervisor, percent of one CPU",
        seen.and_then(|seen| seen.host.steal_pct),
    );
    for (name, help, pick) in [
        ("evenkeel_host_cpu_busy_seconds_total", "CPU used, by CPU, since evenkeel watches", 0),
        (
            "evenkeel_host_cpu_stolen_seconds_total",
            "CPU taken by the hypervisor, by CPU, since evenkeel watches",
            1,
        ),
    ] {
        let mut family = page.family(name, Kind::Counter, help);
        for (cpu, sums) in board.cpus.iter() {
            family.value(&[("cpu", &cpu.to_string())], [Some(sums.0), sums.1][pick]);
        }
    }
    if let Some(seen) = seen {
        isolated(page, seen);
    }
}

/// Tasks that share a CPU which was isolated for one.
fn isolated(page: &mut Page, seen: &Observation) {
    let help =
        "Threads but the kernel's that ran on an isolated CPU in the last interval; more than 1 share it";
    let mut family = page.family("evenkeel_isolated_cpu_tasks", Kind::Gauge, help);
    for cpu in seen.topology.isolated.iter() {
        let ran = seen.tasks.iter().filter(|t| t.cpu == Some(cpu) && t.cpu_pct > 0.0 && !t.kernel_thread);
        family.value(&[("cpu", &cpu.to_string())], Some(ran.count() as f64));
    }
}

/// Labels as cAdvisor has them.
fn labels(key: &Key) -> [(&'static str, &str); 4] {
    [
        ("namespace", key.namespace.as_str()),
        ("pod", key.pod.as_str()),
        ("container", key.name.as_str()),
        ("id", key.path.as_str()),
    ]
}

fn owners(page: &mut Page, board: &Board) {
    type Pick = fn(&Use) -> Option<f64>;
    let counters: [(&'static str, &'static str, Pick); 4] = [
        ("evenkeel_cpu_seconds_total", "CPU got since evenkeel watches", |used| Some(used.cpu)),
        (
            "evenkeel_cpu_wait_seconds_total",
            "Time runnable without a CPU, summed over threads, throttled time included",
            |used| used.wait,
        ),
        (
            "evenkeel_cpu_throttled_seconds_total",
            "Time its run queues were held back by a quota, summed over CPUs",
            |used| used.throttled,
        ),
        (
            "evenkeel_cpu_stolen_seconds_total",
            "Steal of the CPUs it ran on, divided among those who ran there by what they ran (an estimate)",
            |used| used.stolen,
        ),
    ];
    let by_cgroup = || board.owners.iter().filter(|owner| owner.key.kind != owners::Kind::Vm);
    for (name, help, pick) in counters {
        let mut family = page.family(name, Kind::Counter, help);
        by_cgroup().for_each(|owner| family.value(&labels(&owner.key), pick(&owner.total)));
    }
    let help = "1 for what is nothing but background work of the loop, which may wait and be held back";
    let mut family = page.family("evenkeel_background", Kind::Gauge, help);
    for owner in by_cgroup().filter(|owner| board.owners.background.contains(&owner.number)) {
        family.value(&labels(&owner.key), Some(1.0));
    }
    let help = "Lengths of waits for a CPU, throttled time left out, counted in the kernel; scaled up where \
                evenkeel_blame_observed_ratio is below 1";
    let mut family = page.family("evenkeel_runqueue_wait_seconds", Kind::Histogram, help);
    for owner in by_cgroup() {
        if let Some((waits, seconds)) = &owner.waits {
            family.distribution(&labels(&owner.key), of_waits(waits, *seconds));
        }
    }
    let help = "Time a victim's threads were runnable and the culprit had their CPU, or kept them from it; scaled up where \
                evenkeel_blame_observed_ratio is below 1";
    let mut family = page.family("evenkeel_cpu_blame_seconds_total", Kind::Counter, help);
    for ((victim, culprit), seconds) in &board.owners.blame {
        family.value(&[("victim", victim), ("culprit", culprit)], Some(*seconds));
    }
    let help = "Share of the last minute in which waits were counted; what was counted stands for all of it";
    page.gauge("evenkeel_blame_observed_ratio", help, board.counted.observed);
    let help = "CPU that counting waits took in the kernel, an estimate by every 127th call";
    page.counter("evenkeel_blame_cpu_seconds_total", help, board.counted.spent_s);
    let vms = || board.owners.iter().filter(|owner| owner.key.kind == owners::Kind::Vm);
    type OfOwner = fn(&Owner) -> Option<f64>;
    let machines: [(&'static str, &'static str, OfOwner); 3] = [
        ("evenkeel_vm_cpu_seconds_total", "CPU got by a virtual machine", |owner| Some(owner.total.cpu)),
        (
            "evenkeel_vm_cpu_ready_seconds_total",
            "CPU Ready: time its threads were runnable without a CPU, throttled time left out",
            |owner| owner.ready,
        ),
        ("evenkeel_vm_cpu_throttled_seconds_total", "Time it was held back by a quota", |owner| {
            owner.total.throttled
        }),
    ];
    for (name, help, pick) in machines {
        let mut family = page.family(name, Kind::Counter, help);
        vms().for_each(|owner| family.value(&[("vm", &owner.key.name)], pick(owner)));
    }
    page.gauge(
        "evenkeel_owners",
        "Containers, services and virtual machines told apart",
        Some(board.owners.count() as f64),
    );
}

/// Rates of the last interval: older than the counters, and kept next to them.
fn gauges(page: &mut Page, board: &Board) {
    let pods = board.observation.as_deref().map(pods).unwrap_or_default();
    type Pick = fn(&Use) -> Option<f64>;
    let rates: [(&'static str, &'static str, Pick); 3] = [
        ("evenkeel_cpu_percent", "CPU got, percent of one CPU", |now| Some(now.cpu)),
        ("evenkeel_wait_percent", "Time runnable without a CPU, percent, summed over tasks", |now| now.wait),
        ("evenkeel_throttled_percent", "Time held back by a quota, percent", |now| now.throttled),
    ];
    for (name, help, pick) in rates {
        let mut family = page.family(name, Kind::Gauge, help);
        for owner in
            board.owners.iter().filter(|o| matches!(o.key.kind, owners::Kind::Container | owners::Kind::Vm))
        {
            let Key { kind, name, .. } = &owner.key;
            let labels = [("kind", kind.name()), ("name", name), ("pod", &pod_title(&owner.key))];
            family.value(&labels, pick(&owner.now));
        }
        for (pod, now) in &pods {
            family.value(&[("kind", "pod"), ("name", pod), ("pod", pod)], pick(now));
        }
    }
}

fn pod_title(key: &Key) -> String {
    match (key.namespace.as_str(), key.pod.as_str()) {
        ("", pod) => pod.to_owned(),
        (namespace, pod) => format!("{namespace}/{pod}"),
    }
}

/// Pods by name, with their rates.
pub fn pods(observation: &Observation) -> Vec<(String, Use)> {
    let group = |at: Option<u32>| at.and_then(|at| observation.groups.get(at as usize));
    let held = observation.held_back_pct();
    let mut pods: Vec<(String, Use)> = observation
        .pods
        .iter()
        .take(owners::MOST)
        .map(|pod| {
            let cpu = group(pod.group).and_then(|group| group.cpu_pct).unwrap_or(0.0);
            (pod.full_name(), Use { cpu, ..Use::default() })
        })
        .collect();
    let mut ran = vec![0.0; pods.len()];
    let pod_of = |container: Option<u32>| observation.containers.get(container? as usize)?.pod;
    let there = observation.tasks.iter().map(|task| (task.pod, task.cpu_pct, task.wait_pct));
    let ended = observation.exited.iter();
    let ended = ended.map(|ended| (pod_of(ended.container), ended.cpu_pct, Some(ended.wait_pct)));
    for (pod, cpu_pct, wait_pct) in there.chain(ended) {
        let Some(at) = pod.map(|at| at as usize).filter(|at| *at < pods.len()) else { continue };
        ran[at] += cpu_pct;
        add_known(&mut pods[at].1.wait, wait_pct);
    }
    for (((_, now), ran), pod) in pods.iter_mut().zip(ran).zip(&observation.pods) {
        now.cpu = now.cpu.max(ran);
        // Most quotas are those of its containers; some are of the groups that it is in.
        now.throttled = pod.group.and_then(|at| observation.held_back_in(&held, at, now.wait));
    }
    pods
}

/// What a loop did, next to which this is served.
fn the_loop(page: &mut Page, board: &Board) {
    let governor = board.governor.as_ref().filter(|governor| governor.group.is_some());
    let limit = governor.and_then(|governor| governor.limit_pct.or(governor.found_pct));
    page.gauge(
        "evenkeel_cpu_limit_percent",
        "Limit of the scope against stolen CPU, percent of one CPU",
        limit,
    );
    let stolen = governor.map(|governor| governor.stolen_s);
    page.gauge(
        "evenkeel_scope_stolen_seconds",
        "CPU stolen of what the scope wanted since the run began",
        stolen,
    );
    let effect = |pick: fn(&EffectNow) -> Option<Effect>| board.effect.as_ref().and_then(pick);
    let cpu = effect(|now| now.cpu_pct);
    page.gauge("evenkeel_effect_cpu_percent", "CPU got more than under the baseline", cpu.map(|e| e.value));
    page.gauge("evenkeel_effect_cpu_percent_low", "Lower end of its interval", cpu.and_then(|e| e.low));
    page.gauge("evenkeel_effect_cpu_percent_high", "Upper end of its interval", cpu.and_then(|e| e.high));
    let hours: Vec<_> = board.effect.iter().flat_map(|now| &now.by_hour).collect();
    for (name, help, pick) in [
        (
            "evenkeel_effect_hour_cpu_percent",
            "CPU got more than under the baseline, by hour of the clock, UTC",
            (|e| Some(e.value)) as fn(&Effect) -> Option<f64>,
        ),
        ("evenkeel_effect_hour_cpu_percent_low", "Lower end of its interval", |e| e.low),
        ("evenkeel_effect_hour_cpu_percent_high", "Upper end of its interval", |e| e.high),
    ] {
        let mut family = page.family(name, Kind::Gauge, help);
        for at in &hours {
            family.value(&[("hour", &format!("{:02}", at.hour))], pick(&at.cpu_pct));
        }
    }
    let wait = effect(|now| now.wait_p99_ms);
    let seconds = |ms: f64| ms / 1e3;
    let longer = "99th percentile of waits longer than under the baseline";
    page.gauge("evenkeel_effect_wait_p99_seconds", longer, wait.map(|e| seconds(e.value)));
    let end = |pick: fn(Effect) -> Option<f64>| wait.and_then(pick).map(seconds);
    page.gauge("evenkeel_effect_wait_p99_seconds_low", "Lower end of its interval", end(|e| e.low));
    page.gauge("evenkeel_effect_wait_p99_seconds_high", "Upper end of its interval", end(|e| e.high));
    let since = cpu.map(|e| e.since_ns as f64 / 1e9);
    page.gauge("evenkeel_effect_since_timestamp_seconds", "Since when the effect is measured", since);
    let blocks = board.effect.as_ref().map(|now| now.blocks as f64);
    page.gauge("evenkeel_effect_blocks", "Blocks under the baseline; 0: as measured at the decision", blocks);
    let share = effect(|now| now.holdout_share).map(|e| e.value);
    page.gauge("evenkeel_holdout_share_ratio", "Share of the time under the baseline", share);
    guarantees(page, &board.guarantees);
    slos(page, &board.protected);
    requests(page, board);
    if let Some(settings) = &board.settings {
        page.counter("evenkeel_trials_total", "Trials held", Some(board.trials as f64));
        let help = "Trials after which settings of ours were in force";
        page.counter("evenkeel_trials_kept_total", help, Some(board.kept as f64));
        page.counter(
            "evenkeel_changes_reverted_total",
            "Changes in force that were taken back",
            Some(board.reverted as f64),
        );
        page.family("evenkeel_settings_in_force", Kind::Gauge, "Which settings are in force")
            .value(&[("name", settings)], Some(1.0));
    }
}

fn guarantees(page: &mut Page, guarantees: &[GuaranteeStatus]) {
    type Pick = fn(&GuaranteeStatus) -> Option<f64>;
    let gauges: [(&'static str, &'static str, Pick); 6] = [
        ("evenkeel_guarantee_promised_percent", "CPU promised, percent of one CPU", |g| g.promised_pct),
        ("evenkeel_guarantee_got_percent", "CPU got in the last second, percent of one CPU", |g| g.got_pct),
        (
            "evenkeel_guarantee_wait_p99_seconds",
            "99th percentile of waits for a CPU in the last 20 s; without wait_p99 or BPF that of means of 0.1 s, which is less",
            |g| g.wait_p99_ms.map(|ms| ms / 1e3),
        ),
        ("evenkeel_guarantee_broken_minutes_day", "Minutes broken in the last day", |g| g.broken_min_day),
        ("evenkeel_guarantee_kept", "1 if the promise is kept, 0 if it is broken or refused", |g| {
            match g.state {
                PromiseState::Kept | PromiseState::AtRisk => Some(1.0),
                PromiseState::Broken | PromiseState::Refused => Some(0.0),
                PromiseState::Waiting | PromiseState::Unknown => None,
            }
        }),
        (
            "evenkeel_guarantee_rate_short_percent",
            "Missing of the rate, percent of one CPU; 0 if it is not",
            |g| {
                g.as_rate
                    .filter(|state| *state != PromiseState::Unknown)
                    .map(|_| g.rate_short_pct.unwrap_or(0.0))
            },
        ),
    ];
    for (name, help, pick) in gauges {
        let mut family = page.family(name, Kind::Gauge, help);
        guarantees.iter().for_each(|promise| family.value(&[("name", &promise.name)], pick(promise)));
    }
}

fn slos(page: &mut Page, services: &[ProtectedStatus]) {
    type Pick = fn(&SloStatus) -> Option<f64>;
    const fn yes(value: bool) -> f64 {
        if value { 1.0 } else { 0.0 }
    }
    let gauges: [(&'static str, &'static str, Pick); 7] = [
        ("evenkeel_service_slo_slow_ratio", "Share of the last minute's requests beyond the bound", |slo| {
            slo.slow_share
        }),
        (
            "evenkeel_service_slo_limit_ratio",
            "Share from which on settings are called into question",
            |slo| Some(slo.limit_share),
        ),
        ("evenkeel_service_slo_requests", "Requests counted in the last minute", |slo| slo.requests),
        ("evenkeel_service_slo_bound_seconds", "Bucket's edge beyond which a request is slow", |slo| {
            slo.edge_ms.map(|ms| ms / 1e3)
        }),
        ("evenkeel_service_slo_answer_age_seconds", "Age of the last answer that could be read", |slo| {
            slo.answered_ns.map(|then| evenkeel_linux::sys::wall_ns().saturating_sub(then) as f64 / 1e9)
        }),
        ("evenkeel_service_slo_kept", "1 if the promise is kept, 0 if it is broken", |slo| slo.kept.map(yes)),
        (
            "evenkeel_service_slo_judged",
            "1 if the service is judged by its requests, 0 if by its waits",
            |slo| Some(yes(slo.kept.is_some())),
        ),
    ];
    for (name, help, pick) in gauges {
        let mut family = page.family(name, Kind::Gauge, help);
        for service in services {
            family.value(&[("name", &service.name)], service.slo.as_ref().and_then(pick));
        }
    }
}

/// Requests of one service, with its labels: all series have the same ones.
struct Counted<'a> {
    labels: [(&'static str, &'a str); 4],
    within: &'a [(f64, f64)],
    all: f64,
    failed: Option<f64>,
}

/// What services count of their requests themselves.
fn requests(page: &mut Page, board: &Board) {
    let labels = |name, [namespace, pod, container]: [_; 3]| {
        [("name", name), ("namespace", namespace), ("pod", pod), ("container", container)]
    };
    let stated = board.protected.iter().filter_map(|service| {
        let slo = service.slo.as_ref()?;
        let labels = labels(service.name.as_str(), [""; 3]);
        Some(Counted { labels, within: &slo.counted_within, all: slo.counted?, failed: slo.failed })
    });
    let scraped = board.scraped.iter().map(|found| Counted {
        labels: labels(&found.name, [&found.namespace, &found.pod, &found.container]),
        within: &found.within,
        all: found.all,
        failed: found.failed,
    });
    let counted: Vec<Counted<'_>> = stated.chain(scraped).collect();
    let help = "Requests answered by a service, as its endpoint counts them, since it was asked first";
    let mut family = page.family("evenkeel_service_requests_total", Kind::Counter, help);
    counted.iter().for_each(|of| family.value(&of.labels, Some(of.all)));
    let help = "Requests that a service failed to answer (5xx, gRPC), as its endpoint counts them, since it was asked first";
    let mut family = page.family("evenkeel_service_request_errors_total", Kind::Counter, help);
    counted.iter().for_each(|of| family.value(&of.labels, of.failed));
    let help = "How long they took, as the endpoint counts them, since it was asked first";
    let mut family = page.family("evenkeel_service_request_duration_seconds", Kind::Histogram, help);
    for of in &counted {
        family.distribution(&of.labels, of_requests(of.within, of.all));
    }
}

fn own(page: &mut Page, board: &Board) {
    page.counter("evenkeel_self_cpu_seconds_total", "CPU time of evenkeel itself", cost::cpu_seconds());
    let bytes = cost::resident().map(|bytes| bytes as f64);
    page.gauge("evenkeel_self_resident_bytes", "Memory of evenkeel itself", bytes);
    let count = |of: &AtomicU64| Some(of.load(Ordering::Relaxed) as f64);
    if let Some(counts) = &board.webhook {
        let delivered = count(&counts.delivered);
        page.counter("evenkeel_webhook_delivered_total", "Notices that the webhook took", delivered);
        let dropped = count(&counts.dropped);
        page.counter("evenkeel_webhook_dropped_total", "Notices that the webhook did not take", dropped);
    }
    if let Some(pushed) = &board.pushed {
        let delivered = count(&pushed.counts.delivered);
        page.counter("evenkeel_otlp_delivered_total", "Pushes that the collector took", delivered);
        let dropped = count(&pushed.counts.dropped);
        page.counter("evenkeel_otlp_dropped_total", "Pushes that the collector did not take", dropped);
        let rejected = count(&pushed.rejected);
        let help = "Data points that the collector refused of pushes that it took";
        page.counter("evenkeel_otlp_rejected_points_total", help, rejected);
    }
    let seen = board.observation.as_deref().map(|seen| seen.wall_ns as f64 / 1e9);
    page.gauge("evenkeel_observed_timestamp_seconds", "When the host was last looked at", seen);
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.family("evenkeel_build_info", Kind::Gauge, "Version of evenkeel").value(&version, Some(1.0));
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{ContainerView, ExitedView, GroupView, PodView};

    use super::*;
    use crate::notices::labelled::host;

    #[test]
    fn what_ended_in_a_pods_containers_is_the_pods() {
        let mut seen = host(2, 1);
        seen.pods = vec![PodView::of("prod", "web")];
        seen.containers = vec![ContainerView { pod: Some(0), ..ContainerView::of("app", "containerd") }];
        let task = &mut seen.tasks[0];
        (task.pod, task.container, task.cpu_pct, task.wait_pct) = (Some(0), Some(0), 10.0, Some(1.0));
        let ended =
            |container| ExitedView { container, cpu_pct: 50.0, wait_pct: 7.0, ..ExitedView::default() };
        seen.exited = vec![ended(Some(0)), ended(None)];
        let now = pods(&seen)[0].1;
        assert_eq!((now.cpu, now.wait), (60.0, Some(8.0)));
        // A quota of a group that it is in holds it back for no longer than it waited.
        let group =
            |path, parent, throttled_pct| GroupView { throttled_pct, ..GroupView::of(path, parent, true) };
        seen.groups = vec![group("/a.slice", None, Some(30.0)), group("/a.slice/pod", Some(0), None)];
        seen.pods[0].group = Some(1);
        assert_eq!(pods(&seen)[0].1.throttled, Some(8.0));
    }

    #[test]
    fn who_is_nothing_but_background_work_is_told_from_others() {
        let mut board = Board::default();
        let mut page = |may_wait: &[bool]| {
            let owners = std::sync::Arc::make_mut(&mut board.owners);
            owners.let_wait(may_wait.to_vec());
            owners.observe(&host(2, 2));
            let mut page = Page::default();
            super::owners(&mut page, &board);
            let text = String::from_utf8(page.written("").1).unwrap();
            text.lines()
                .filter(|line| line.starts_with("evenkeel_background"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let line = "evenkeel_background{namespace=\"\",pod=\"\",container=\"\",id=\"/s1\"} 1";
        assert_eq!(page(&[false, true]), [line]);
        assert!(page(&[]).is_empty(), "nobody says so any more");
    }

    #[test]
    fn what_is_missing_of_a_rate_is_not_zero_where_it_is_not_known() {
        let missing = |as_rate, rate_short_pct| {
            let mut page = Page::default();
            let name = "a".to_owned();
            let promise = GuaranteeStatus { name, as_rate, rate_short_pct, ..GuaranteeStatus::default() };
            guarantees(&mut page, &[promise]);
            let text = String::from_utf8(page.written("").1).unwrap();
            let line = |line: &str| {
                Some(line.strip_prefix("evenkeel_guarantee_rate_short_percent{name=\"a\"} ")?.to_owned())
            };
            text.lines().find_map(line)
        };
        assert_eq!(missing(Some(PromiseState::Kept), None).as_deref(), Some("0"));
        assert_eq!(missing(Some(PromiseState::Broken), Some(8.5)).as_deref(), Some("8.5"));
        assert_eq!((missing(Some(PromiseState::Unknown), None), missing(None, None)), (None, None));
    }
}
