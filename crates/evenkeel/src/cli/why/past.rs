//! `why --at`: a target's time from what a flight recorder kept.

use std::path::PathBuf;
use std::time::Duration;

use evenkeel_agent::Scope;
use evenkeel_base::{Observation, PodView, TaskView};
use evenkeel_observe::flight::{Account, Place, Recording, Threads, account};
use evenkeel_report::time;
use evenkeel_report::why::{Blame, Kind, Split, Target};
use jiff::Timestamp;

use super::document::{NS, waits};
use crate::cli::when::{self, When};
use crate::cli::{Failure, Global, flight, record};

/// When, and where that is recorded.
#[derive(Debug, clap::Args)]
pub(super) struct Past {
    /// Look at a past moment, from what `serve --record` kept or a --recording has: --for is the time around it. An instant as
    /// 2026-11-25T10:00:03Z, a time of the last 24 hours (UTC) as 10:00:03, or how long ago, as 30s.
    #[arg(long, value_name = "TIME", value_parser = when::parse, conflicts_with_all = ["all", "source"])]
    pub at: Option<When>,
    /// A file that `record --form recording` wrote, or that an agent saved with a notice; without --at all of it counts.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["all", "source"])]
    pub recording: Option<PathBuf>,
}

impl Past {
    pub fn is_meant(&self) -> bool {
        self.at.is_some() || self.recording.is_some()
    }
}

/// The document of a target at a past moment.
pub(super) fn document(
    global: &Global,
    args: &Past,
    text: &str,
    duration: Duration,
) -> Result<Target, Failure> {
    let scope = Scope::parse(&[text]).map_err(|error| Failure::Usage(error.into()))?;
    let moment = |at| when::moment(Timestamp::now(), at).map_err(Failure::Usage);
    let at = args.at.map(moment).transpose()?;
    let recording = match &args.recording {
        Some(file) => record::read(file)?,
        // Everything that is kept: an account begins with what went before.
        None => flight::ask(&global.state_dir, Duration::from_secs(3600))?,
    };
    let (start, end) = recording.interval_ns();
    let wanted = at.map_or((start, end), |at| {
        let (at, half) = (recording.monotonic_ns(at), duration.as_nanos() as u64 / 2);
        (at.saturating_sub(half), at.saturating_add(half))
    });
    let interval = (wanted.0.max(start), wanted.1.min(end));
    if interval.0 >= interval.1 {
        let instant = |ns| time::instant(recording.wall_ns(ns));
        return Err(usage!(
            "{}: what is kept is from {} to {}",
            at.map(time::instant).unwrap_or_default(),
            instant(start),
            instant(end)
        ));
    }
    let observation = recording.observation();
    let is_target = |view: &TaskView| !view.kernel_thread && scope.has(view, observation);
    let threads = recording.threads();
    let account = account(&recording, &threads, interval, is_target);
    if account.threads == 0 && account.unseen == 0 {
        return Err(usage!("{text}: no task belonged to it then"));
    }
    let mut target = of(&recording, &account, text);
    target.blame = Some(blame(observation, &threads, &account, is_target));
    if account.unseen > 0 {
        target.notes.push(format!(
            "of {} more of its threads nothing is kept: they slept, waited or ran all the time; their time is left out",
            account.unseen
        ));
    }
    if interval != wanted {
        target.notes.push("not all of the time asked for is kept".to_owned());
    }
    if account.throttled_ns > 0 {
        target.notes.push(
            "throttled time lasts here until the thread ran again; whose quota it was is not kept".to_owned(),
        );
    }
    Ok(target)
}

fn of(recording: &Recording, account: &Account, text: &str) -> Target {
    let seconds = |ns: u64| ns as f64 * NS;
    let (from, to) = account.interval_ns;
    let split = Split {
        ran_s: seconds(account.ran_ns),
        waited_s: seconds(account.waited_ns),
        throttled_s: Some(seconds(account.throttled_ns)),
        stolen_s: Some(seconds(account.stolen_ns)),
        slept_s: seconds(account.slept_ns + account.blocked_ns + account.stopped_ns),
    };
    Target {
        schema: "evenkeel.why/v1",
        target: text.to_owned(),
        source: "recording",
        started: time::rfc3339(recording.wall_ns(from)),
        wall_s: seconds(to - from),
        threads: account.threads as usize,
        shares: split.shares(),
        wanted_s: split.wanted_s(),
        split,
        blocked_s: Some(seconds(account.blocked_ns)),
        stopped_s: Some(seconds(account.stopped_ns)),
        migrations: Some(account.migrated),
        preemptions: Some(account.preempted),
        voluntary: Some(account.voluntary),
        wait_histogram_usec: Some(waits(&account.waits, account.longest_ns)),
        ..Target::default()
    }
}

/// Who had the CPU, by thread.
fn blame(
    observation: &Observation,
    threads: &Threads<'_>,
    account: &Account,
    is_target: impl Fn(&TaskView) -> bool,
) -> Vec<Blame> {
    let whole: u64 = account.blame.values().sum();
    let row = |((tid, place), ns): (&(u32, Option<Place>), &u64)| {
        let view = place.and_then(|place| threads.view(place));
        let container = view.and_then(|view| observation.containers.get(view.container? as usize));
        let pod = view.and_then(|view| observation.pods.get(view.pod? as usize));
        let kernel = view.is_some_and(|view| view.kernel_thread);
        let group = view.filter(|_| !kernel).and_then(|view| observation.group_of(view));
        Blame {
            kind: match tid {
                0 => Kind::Idle,
                _ if kernel => Kind::KernelThread,
                _ => Kind::Task,
            },
            name: match (tid, view) {
                (0, _) => "idle".to_owned(),
                (_, Some(view)) => view.comm.clone(),
                (_, None) => "?".to_owned(),
            },
            tgid: view.map(|view| view.id.tgid),
            tid: (*tid != 0).then_some(*tid),
            container: container.map(|container| container.name.clone()),
            pod: pod.map(PodView::full_name),
            cgroup: group.map(|group| group.path.clone()),
            own: view.is_some_and(&is_target),
            seconds: *ns as f64 * NS,
            share_pct: 100.0 * *ns as f64 / whole.max(1) as f64,
        }
    };
    let mut rows: Vec<Blame> = account.blame.iter().map(row).collect();
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then(a.tid.cmp(&b.tid)));
    rows
}
