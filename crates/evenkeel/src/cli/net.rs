//! `evenkeel net`: packet steering, interrupts' CPUs and outgoing bandwidth: shown, set, put back.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_actuate::host::shape::{ClassCounters, Owner, Rate, counters, parse_rate, shape};
use evenkeel_actuate::host::{Files, HostError, Queues};
use evenkeel_actuate::{
    ActuateError, Actuator, KernelError, Linux, OpenError, Options, RestoreReport, Verdict,
};
use evenkeel_base::{Change, NetKnob, Setting, Target};
use evenkeel_linux::mountinfo::Hierarchies;
use evenkeel_linux::{Root, facts::irq, fault};
use evenkeel_report::{Field, Table};
use serde::Serialize;

use super::{Failure, Format, Global, Outcome, stop};

/// Show and set how network load is spread over CPUs (RPS, RFS, XPS, IRQ affinity), and limit groups' bandwidth.
///
/// What is set stays until `evenkeel restore` restores it; the original is on disk before the first write. What another
/// program changed meanwhile is left alone and reported.
///
/// Example: evenkeel net show
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Every link's queues with their CPUs, and the interrupts that carry its name.
    Show {
        /// Only this link.
        #[arg(long)]
        link: Option<String>,
    },
    /// Set packet steering of a link, or an interrupt's CPUs.
    Set(Set),
    /// Limit what groups of processes send by a link, by HTB; ended by --for, Ctrl-C or `evenkeel restore`.
    Limit(Limit),
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Link whose queues are set.
    #[arg(long)]
    link: Option<String>,
    /// CPUs received packets are processed on, such as 0-3; `off` for those that served the interrupt.
    #[arg(long, value_name = "CPUS|off", requires = "link")]
    rps: Option<String>,
    /// Flow table entries of each receive queue, and, at least as many for all queues together, of the host (RFS); 0 is
    /// off.
    #[arg(long, value_name = "N", requires = "link")]
    rfs: Option<u32>,
    /// CPUs that send by this link's queues; `off` for the kernel's choice.
    #[arg(long, value_name = "CPUS|off", requires = "link")]
    xps: Option<String>,
    /// CPUs an interrupt is served on: 34=0-1; repeat.
    #[arg(long, value_name = "IRQ=CPUS")]
    irq: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct Limit {
    /// Link packets leave by.
    #[arg(long)]
    link: String,
    /// A cgroup v2 by its path and its rate, headers included: /web=24mbit; repeat. Or a net_cls class id:
    /// classid:0x10001=24mbit.
    #[arg(long, value_name = "GROUP=RATE", required = true)]
    group: Vec<String>,
    /// End after this time, print what each group sent, and restore everything.
    #[arg(long = "for", value_name = "DURATION", value_parser = super::duration)]
    duration: Option<Duration>,
}

impl Args {
    /// Whether it sets something.
    pub fn changes(&self) -> bool {
        !matches!(self.what, What::Show { .. })
    }
}

/// Where what users set is journaled.
pub fn state(global: &Global) -> PathBuf {
    global.state_dir.join("host")
}

pub fn run(global: &Global, args: Args) -> Outcome {
    if global.root.is_some() && args.changes() {
        return Err(usage!("this changes this host: --root does not go with it"));
    }
    match args.what {
        What::Show { link } => show(global, link.as_deref()),
        What::Set(set) => self::set(global, &set),
        What::Limit(limit) => self::limit(global, &limit),
    }
}

#[derive(Debug, Serialize)]
struct QueueRow {
    link: String,
    queue: String,
    knob: &'static str,
    value: Option<String>,
    note: String,
}

fn show(global: &Global, only: Option<&str>) -> Outcome {
    let root = super::show::root(global)?;
    let files = global.root.as_ref().map_or_else(Files::new, Files::at);
    let links: Vec<String> = match only {
        Some(link) => {
            files.queues(link).map_err(|_| usage!("there is no link {link:?}"))?;
            vec![link.to_owned()]
        }
        None => files.links(),
    };
    let irqs = irq::read(&root).unwrap_or_default();
    let mut rows = Vec::new();
    let mut push = |link: &str, queue: String, knob: &'static str, read: Result<String, HostError>| {
        let (value, note) = match read {
            Ok(value) => (Some(value), String::new()),
            Err(error) => (None, error.to_string()),
        };
        rows.push(QueueRow { link: link.to_owned(), queue, knob, value, note });
    };
    push("(host)", String::new(), "rps_sock_flow_entries", files.read(&NetKnob::SockFlowEntries));
    for link in &links {
        let Ok(Queues { receive, transmit }) = files.queues(link) else { continue };
        let named = || link.clone();
        for queue in receive {
            push(
                link,
                format!("rx-{queue}"),
                "rps_cpus",
                files.read(&NetKnob::RpsCpus { link: named(), queue }),
            );
            let count = files.read(&NetKnob::RpsFlowCount { link: named(), queue });
            push(link, format!("rx-{queue}"), "rps_flow_cnt", count);
        }
        for queue in transmit {
            push(
                link,
                format!("tx-{queue}"),
                "xps_cpus",
                files.read(&NetKnob::XpsCpus { link: named(), queue }),
            );
        }
        // Drivers name a queue's interrupt after the link (`eth0-TxRx-3`) or, virtio, after the device (`virtio1-input.0`).
        let device = std::fs::read_link(root.path(format!("sys/class/net/{link}/device"))).ok();
        let device = device.and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
        let belongs = |name: &str| {
            let starts = |prefix: &str| {
                name.strip_prefix(prefix)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.', '@']))
            };
            starts(link) || device.as_deref().is_some_and(starts)
        };
        for irq in irqs.iter().filter(|irq| belongs(&irq.name)) {
            let cpus = irq.affinity.get().map(ToString::to_string);
            let read = cpus.map_err(|why| HostError::Unsupported(why.to_string()));
            push(link, format!("irq {} {}", irq.irq, irq.name), "smp_affinity", read);
        }
        if global.root.is_none() {
            push(link, "root".into(), "qdisc", files.read(&NetKnob::RootQdisc { link: named() }));
        }
    }
    match global.output {
        Format::Json => {
            let document = serde_json::json!({ "schema": "evenkeel.net/v1", "settings": rows });
            outln!("{}", serde_json::to_string_pretty(&document).map_err(|e| Failure::Cannot(e.into()))?)?;
        }
        Format::Csv => out!("{}", table().csv(&rows))?,
        Format::Text | Format::Svg => out!("{}", table().text(&rows, None))?,
    }
    Ok(0)
}

fn table() -> Table<QueueRow> {
    Table::new(vec![
        Field::text("link", "LINK", |row: &QueueRow| row.link.clone()),
        Field::text("queue", "QUEUE", |row: &QueueRow| row.queue.clone()),
        Field::text("knob", "KNOB", |row: &QueueRow| row.knob.to_owned()),
        Field::text("value", "VALUE", |row: &QueueRow| match &row.value {
            Some(value) if value.is_empty() => "off".to_owned(),
            Some(value) => value.clone(),
            None => "?".to_owned(),
        }),
        Field::text("note", "NOTE", |row: &QueueRow| row.note.clone()),
    ])
}

fn open(global: &Global) -> Result<Actuator<Linux>, Failure> {
    let kernel = Linux::new().context("cannot look at the kernel")?;
    Actuator::resume(kernel, &state(global), Options::default()).map_err(|error| match error {
        ActuateError::Open(OpenError::Busy(_)) => {
            refused!("another `evenkeel net` is at work; wait for it or end it")
        }
        error @ ActuateError::Damaged { .. } => Failure::No(error.into()),
        other => Failure::Cannot(other.into()),
    })
}

/// Makes these changes one after the other, up to the first that is not made; `made` counts those that were.
fn make(
    actuator: &mut Actuator<Linux>,
    wanted: &[(NetKnob, String)],
    made: &mut usize,
) -> Result<(), Failure> {
    for (knob, value) in wanted {
        let change = Change {
            target: Target::Net(knob.clone()),
            to: Setting::Net(value.clone()),
            why: "evenkeel net".to_owned(),
        };
        let report = actuator.amend(&[change], &|_| true);
        for outcome in report.changes {
            match outcome.verdict {
                Verdict::Applied(_) => *made += 1,
                Verdict::Unchanged => {}
                Verdict::Gone => return Err(usage!("{knob}: there is none")),
                Verdict::Refused(why) => return Err(usage!(why)),
                Verdict::Conflict(now) => {
                    return Err(usage!("{knob}: somebody else made it {now} meanwhile; left as it is"));
                }
                Verdict::Failed(error @ KernelError::Invalid(_)) => {
                    return Err(Failure::Cannot(anyhow::Error::from(error).context(knob.to_string())));
                }
                Verdict::Failed(error) => return Err(Failure::Cannot(error.into())),
            }
        }
    }
    Ok(())
}

/// What is not as it was found after putting back, one line each.
pub fn problems(report: &RestoreReport) -> Vec<String> {
    let line = |item: &evenkeel_actuate::Item, what: &str| {
        let found = item.found.as_ref().map_or_else(String::new, |found| format!(" (it is {found})"));
        format!("{}: {what}{found}; it was {}", item.target, item.original)
    };
    let conflicts = report.conflicts.iter().map(|item| line(item, "changed by somebody else, left as it is"));
    let failed = report.failed.iter().map(|item| {
        line(item, &format!("could not be restored: {}", item.note.as_deref().unwrap_or("unknown why")))
    });
    conflicts.chain(failed).chain(report.unseen.iter().cloned()).collect()
}

fn of_host(error: HostError) -> Failure {
    match error {
        HostError::Gone(_) | HostError::Refused(_) => Failure::Usage(error.into()),
        other => Failure::Cannot(other.into()),
    }
}

/// `off` is the empty list.
fn cpus(text: &str) -> &str {
    if text == "off" { "" } else { text }
}

fn set(global: &Global, set: &Set) -> Outcome {
    let mut wanted: Vec<(NetKnob, String)> = Vec::new();
    let files = Files::new();
    if let Some(link) = &set.link {
        let Queues { receive, transmit } =
            files.queues(link).map_err(|_| usage!("there is no link {link:?}"))?;
        let named = || link.clone();
        if let Some(entries) = set.rfs {
            // The host's table must hold the flows of all queues (Documentation/networking/scaling.rst).
            let all = entries.saturating_mul(receive.len().max(1) as u32);
            if entries > 0 {
                let present = files.read(&NetKnob::SockFlowEntries).map_err(of_host)?;
                if present.parse::<u32>().unwrap_or(0) < all {
                    wanted.push((NetKnob::SockFlowEntries, all.to_string()));
                }
            }
            for &queue in &receive {
                wanted.push((NetKnob::RpsFlowCount { link: named(), queue }, entries.to_string()));
            }
        }
        for &queue in &receive {
            if let Some(list) = &set.rps {
                wanted.push((NetKnob::RpsCpus { link: named(), queue }, cpus(list).to_owned()));
            }
        }
        for &queue in &transmit {
            if let Some(list) = &set.xps {
                wanted.push((NetKnob::XpsCpus { link: named(), queue }, cpus(list).to_owned()));
            }
        }
    }
    for text in &set.irq {
        let parsed =
            text.split_once('=').and_then(|(irq, cpus)| Some((irq.trim().parse().ok()?, cpus.to_owned())));
        let (irq, cpus) = parsed.ok_or_else(|| usage!("--irq {text}: expected IRQ=CPUS, such as 34=0-1"))?;
        wanted.push((NetKnob::IrqAffinity { irq }, cpus));
    }
    if wanted.is_empty() {
        return Err(usage!("nothing to set: give --rps, --rfs or --xps with --link, or --irq"));
    }
    for (knob, value) in &wanted {
        Files::normal(knob, value).map_err(of_host)?;
    }
    let mut actuator = open(global)?;
    let mut made = 0;
    let done = make(&mut actuator, &wanted, &mut made);
    actuator.leave().with_context(|| format!("cannot remove the journal in {}", state(global).display()))?;
    if done.is_err() && made > 0 {
        say!("evenkeel: {made} of {} settings were made, and stay until `evenkeel restore`", wanted.len());
    }
    done?;
    for (knob, value) in &wanted {
        outln!("{knob}: {}", if value.is_empty() { "off" } else { value })?;
    }
    say!("stays until `evenkeel restore`");
    Ok(0)
}

/// `GROUP=RATE`.
pub(super) fn rate(text: &str, unified: Option<&Path>) -> Result<Rate, Failure> {
    let usage = |why: String| usage!("--group {text}: {why}");
    let (group, rate) =
        text.rsplit_once('=').ok_or_else(|| usage("expected GROUP=RATE, such as /web=24mbit".into()))?;
    let bits_per_s = parse_rate(rate).map_err(usage)?;
    if let Some(id) = group.strip_prefix("classid:") {
        let parsed =
            id.strip_prefix("0x").map_or_else(|| id.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok());
        let id = parsed.filter(|id| *id > 0).ok_or_else(|| usage(format!("{id:?} is not a class id")))?;
        return Ok(Rate { owner: Owner::ClassId(id), bits_per_s });
    }
    let mount = unified.ok_or_else(|| {
        cannot!("no cgroup v2 is mounted, by which sockets' groups are told; use classid:ID with net_cls")
    })?;
    let dir = mount.join(group.trim_start_matches('/'));
    let owner = Owner::of_cgroup(mount, &dir).map_err(|error| usage(error.to_string()))?;
    Ok(Rate { owner, bits_per_s })
}

/// Two of `GROUP=RATE` of which the first is the second or in it: a packet has one rate, so one of the two would not hold.
fn overlapping(groups: &[String]) -> Option<(&str, &str)> {
    let names = || groups.iter().map(|text| text.rsplit_once('=').map_or(text.as_str(), |(group, _)| group));
    let path = |name: &'_ str| PathBuf::from(name.trim_start_matches('/'));
    let pairs = names().enumerate().flat_map(|(at, inner)| {
        names().enumerate().filter(move |(other, _)| *other != at).map(move |(_, outer)| (inner, outer))
    });
    pairs.into_iter().find(|(inner, outer)| path(inner).starts_with(path(outer)))
}

fn limit(global: &Global, limit: &Limit) -> Outcome {
    if let Some((inner, outer)) = overlapping(&limit.group) {
        return Err(usage!(
            "--group {inner} belongs to --group {outer}: only one of the two rates could hold"
        ));
    }
    let hierarchies = Hierarchies::read(&Root::host()).map_err(|e| Failure::Cannot(e.into()))?;
    let mount = hierarchies.unified.map(|hierarchy| PathBuf::from(hierarchy.mount_point));
    let rates = limit.group.iter().map(|text| rate(text, mount.as_deref())).collect::<Result<Vec<_>, _>>()?;
    let handle = *evenkeel_actuate::host::OUR_HANDLES.start();
    let knob = NetKnob::RootQdisc { link: limit.link.clone() };
    // What lasts for a while only is restored by whatever ends it.
    let stop = limit.duration.map(|_| stop::on_signals()).transpose()?;
    let mut actuator = open(global)?;
    let files = Files::new();
    let present = files.identity(&knob).and_then(|_| files.read(&knob)).map_err(of_host);
    let present = match present {
        Ok(present) => present,
        Err(error) => {
            actuator.leave().context("cannot remove the journal")?;
            return Err(error);
        }
    };
    if present.starts_with("htb ee") {
        return Err(refused!("{} is limited already; `evenkeel restore` ends that", limit.link));
    }
    if let Err(error) = make(&mut actuator, &[(knob, format!("htb {handle:x}:"))], &mut 0) {
        actuator.leave().context("cannot remove the journal")?;
        return Err(error);
    }
    if let Err(error) = shape(&limit.link, handle, &rates) {
        // Deleting the root takes what was made with it.
        problems(&actuator.close()).iter().for_each(|line| say!("evenkeel: {line}"));
        return Err(of_host(error));
    }
    let Some(duration) = limit.duration else {
        outln!("{}: {} groups limited; stays until `evenkeel restore`", limit.link, rates.len())?;
        return Ok(0);
    };
    let actuator = UntilDropped(Some(actuator));
    let began = Instant::now();
    while began.elapsed() < duration
        && !stop.is_some_and(|stop| stop.load(std::sync::atomic::Ordering::Relaxed))
    {
        std::thread::sleep(Duration::from_millis(100).min(duration));
    }
    let seconds = began.elapsed().as_secs_f64();
    fault::point("net.limited");
    let sent = counters(&limit.link, handle).map_err(of_host);
    let Some(report) = actuator.close() else { return Ok(1) };
    problems(&report).iter().for_each(|line| say!("evenkeel: {line}"));
    print_sent(global, &limit.group, &rates, &sent?, seconds)?;
    Ok(u8::from(!report.is_clean()))
}

/// What was set for a while; restored however that ends, by a panic too.
struct UntilDropped(Option<Actuator<Linux>>);

impl UntilDropped {
    fn close(mut self) -> Option<RestoreReport> {
        self.0.take().map(Actuator::close)
    }
}

impl Drop for UntilDropped {
    fn drop(&mut self) {
        if let Some(actuator) = self.0.take() {
            problems(&actuator.close()).iter().for_each(|line| say!("evenkeel: {line}"));
        }
    }
}

#[derive(Debug, Serialize)]
struct SentRow<'a> {
    group: &'a str,
    limit_bits_per_s: u64,
    bits_per_s: f64,
    bytes: u64,
    packets: u64,
    drops: u64,
}

fn print_sent(
    global: &Global,
    groups: &[String],
    rates: &[Rate],
    sent: &[ClassCounters],
    seconds: f64,
) -> Result<(), Failure> {
    let rows: Vec<SentRow<'_>> = sent
        .iter()
        .filter_map(|class| {
            let index = usize::from(class.class).checked_sub(1)?;
            Some(SentRow {
                group: groups.get(index)?.rsplit_once('=').map_or("", |(group, _)| group),
                limit_bits_per_s: rates.get(index)?.bits_per_s,
                bits_per_s: class.bytes as f64 * 8.0 / seconds.max(1e-9),
                bytes: class.bytes,
                packets: class.packets,
                drops: class.drops,
            })
        })
        .collect();
    if global.output == Format::Json {
        let document =
            serde_json::json!({ "schema": "evenkeel.net-limit/v1", "seconds": seconds, "groups": rows });
        outln!("{}", serde_json::to_string_pretty(&document).map_err(|e| Failure::Cannot(e.into()))?)?;
        return Ok(());
    }
    let table = Table::new(vec![
        Field::text("group", "GROUP", |row: &SentRow<'_>| row.group.to_owned()),
        Field::number("limit_mbit", "LIMIT MBIT/S", 2, |row: &SentRow<'_>| {
            Some(row.limit_bits_per_s as f64 / 1e6)
        }),
        Field::number("sent_mbit", "SENT MBIT/S", 2, |row: &SentRow<'_>| Some(row.bits_per_s / 1e6)),
        Field::integer("bytes", "BYTES", |row: &SentRow<'_>| i64::try_from(row.bytes).ok()),
        Field::integer("packets", "PACKETS", |row: &SentRow<'_>| i64::try_from(row.packets).ok()),
        Field::integer("drops", "DROPS", |row: &SentRow<'_>| i64::try_from(row.drops).ok()),
    ]);
    match global.output {
        Format::Csv => out!("{}", table.csv(&rows))?,
        _ => out!("{}", table.text(&rows, None))?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_one_rate() {
        let found = |groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(|group| format!("{group}=1mbit")).collect();
            overlapping(&groups).map(|(inner, outer)| (inner.to_owned(), outer.to_owned()))
        };
        let of = |inner: &str, outer: &str| Some((inner.to_owned(), outer.to_owned()));
        assert_eq!(found(&["/web", "/web/a"]), of("/web/a", "/web"));
        assert_eq!(found(&["web/a/b", "/db", "/web/a/"]), of("web/a/b", "/web/a/"));
        assert_eq!(found(&["/web", "web"]), of("/web", "web"));
        assert_eq!(found(&["/web", "/website", "classid:1", "classid:2"]), None);
    }
}
