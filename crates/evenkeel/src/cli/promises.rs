//! `evenkeel prove --promises`: are promised shares kept, on loads whose demand is known?
//!
//! What was got is read by a gauge of its own, not by the loop that keeps the promises, and judged second by second by the
//! rule of `docs/guarantees.md`.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Context;
use evenkeel_agent::guarantee::Source;
use evenkeel_agent::{Agent, Config, Guarantee, Guarantees, Scope, Watcher};
use evenkeel_base::{CpuSet, PromiseState};
use evenkeel_lab::private::PrivateDir;
use evenkeel_lab::tenant::{Layout, Starter, Tenants};
use evenkeel_linux::sys::wall_ns;
use evenkeel_policy::guarantee::verdict::judge;
use evenkeel_policy::guarantee::{CpuAmount, Mean, Reservation, Window};
use evenkeel_report::table::{Field, Table, Value, width};
use evenkeel_workload::Kind;
use evenkeel_workload::duty::{Duty, DutyKind};
use evenkeel_workload::load::{LoadSampler, LoadSpec, Reading, StartAt};
use evenkeel_workload::spin::Spin;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::sink::ConsoleSink;
use super::{Failure, Format, Global, Outcome};

/// Which promises are put to the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Which {
    /// 40/50/10 on one CPU, wanted 40/50/30, -/50/80 and 40/50/80, open and closed loads.
    Fixed,
    /// Random sets that pack onto two CPUs with 10 % slack.
    Random,
    /// A neighbour that goes from 10 % to 100 % at once.
    Spike,
    /// All of them.
    All,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Order {
    pub which: Which,
    pub places: Vec<Layout>,
    pub seconds: u32,
    pub sets: u64,
    pub seed: u64,
}

/// Time given to settle: what a change may take.
const SETTLE_S: u32 = 5;
/// Points short from which a second counts as broken in the summary.
const BADLY: f64 = 2.0;

/// One load of a scene.
#[derive(Debug, Clone)]
struct Load {
    spec: LoadSpec,
    promised: Option<f64>,
}

/// Loads, where they run, and what the scene shows.
#[derive(Debug, Clone)]
struct Scene {
    name: String,
    place: Layout,
    cpus: CpuSet,
    loads: Vec<Load>,
    /// A promise to somebody who is not there.
    absent: Option<f64>,
    seconds: u32,
}

/// What one load got.
#[derive(Debug, Clone, Default)]
pub(super) struct Row {
    scene: String,
    place: String,
    load: String,
    promised: Option<f64>,
    wanted: Option<f64>,
    got: f64,
    while_runnable: Option<f64>,
    seconds: usize,
    broken: usize,
    badly: usize,
    worst: f64,
    /// Seconds in which it is short as rate, whatever of them is kept as supply.
    rate_broken: usize,
}

fn duty(name: &str, percent: f64, kind: DutyKind, seed: u64, period: Duration) -> LoadSpec {
    LoadSpec::new(Kind::Duty(Duty { percent, period, jitter: 50.0, kind, seed })).named(name)
}

pub fn run(global: &Global, order: &Order) -> Outcome {
    let topology =
        evenkeel_observe::read_topology(&evenkeel_linux::Root::host()).context("cannot read the machine")?;
    let cpus: Vec<u32> = topology.online.intersection(&topology.allowed).iter().collect();
    let mut sink = ConsoleSink::new()?;
    let mut rows: Vec<Row> = Vec::new();
    let scenes = scenes(order, &cpus);
    for scene in &scenes {
        if sink.stopping() {
            break;
        }
        sink.lasting(&format!("{} ({:?}): {} s", scene.name, scene.place, SETTLE_S + scene.seconds));
        let played = play(scene, &mut sink).map_err(|failure| {
            super::prove::not_alone(failure, &rows, |rows| print(global, rows, scenes.len()))
        })?;
        rows.extend(played);
    }
    print(global, &rows, scenes.len())?;
    if sink.stopping() {
        say!("evenkeel: interrupted: not all of the {} scenes are judged", scenes.len());
        return Ok(1);
    }
    Ok(status(&rows))
}

/// Where no second was judged, no promise was kept, either.
fn status(rows: &[Row]) -> u8 {
    let total: usize = rows.iter().filter(|r| r.promised.is_some()).map(|r| r.seconds).sum();
    let badly: usize = rows.iter().map(|r| r.badly).sum();
    u8::from(total == 0 || badly * 100 > total)
}

fn scenes(order: &Order, cpus: &[u32]) -> Vec<Scene> {
    let mut scenes = Vec::new();
    let one = CpuSet::single(cpus.first().copied().unwrap_or(0));
    let is = |which| order.which == Which::All || order.which == which;
    for &place in &order.places {
        if is(Which::Fixed) {
            for kind in [DutyKind::Open, DutyKind::Closed] {
                for wanted in [
                    [Some(40.0), Some(50.0), Some(30.0)],
                    [None, Some(50.0), Some(80.0)],
                    [Some(40.0), Some(50.0), Some(80.0)],
                ] {
                    scenes.push(fixed(place, kind, wanted, &one, order));
                }
            }
        }
        if is(Which::Spike) {
            scenes.push(spike(place, &one, order));
        }
    }
    if is(Which::Random) {
        let two: CpuSet = cpus.iter().copied().take(2).collect();
        for seed in order.seed..order.seed.saturating_add(order.sets) {
            // Places change every two sets, so that each is seen with and without a neighbour.
            let place = order.places[(seed / 2 % order.places.len() as u64) as usize];
            scenes.push(random(seed, place, &two, order));
        }
    }
    scenes
}

fn fixed(place: Layout, kind: DutyKind, wanted: [Option<f64>; 3], cpu: &CpuSet, order: &Order) -> Scene {
    let promised = [40.0, 50.0, 10.0];
    let texts = wanted.map(|w| w.map_or_else(|| "-".to_owned(), |w| w.to_string()));
    Scene {
        name: format!("40/50/10 wanted {} {kind}", texts.join("/")),
        place,
        cpus: cpu.clone(),
        loads: wanted
            .iter()
            .zip(promised)
            .enumerate()
            .filter_map(|(n, (wanted, promised))| {
                let spec = duty(
                    &format!("task{}", n + 1),
                    (*wanted)?,
                    kind,
                    n as u64 + 1,
                    Duration::from_millis(100),
                );
                Some(Load { spec, promised: Some(promised) })
            })
            .collect(),
        absent: wanted[0].is_none().then_some(promised[0]),
        seconds: order.seconds,
    }
}

/// A promised load that wants all of its promise, and a neighbour of 10 % next to which another one begins to want all there
/// is when the settling is over.
fn spike(place: Layout, cpu: &CpuSet, order: &Order) -> Scene {
    let mut neighbour = LoadSpec::new(Kind::Spin(Spin {})).named("spike");
    // The scene sets the instant when it starts.
    neighbour.common.start_at = Some(StartAt(0));
    let ms = Duration::from_millis(100);
    Scene {
        name: "spike 10 % to 100 %".to_owned(),
        place,
        cpus: cpu.clone(),
        loads: vec![
            Load { spec: duty("promised", 40.0, DutyKind::Open, 1, ms), promised: Some(40.0) },
            Load { spec: duty("neighbour", 10.0, DutyKind::Closed, 2, ms), promised: None },
            Load { spec: neighbour, promised: None },
        ],
        absent: None,
        seconds: order.seconds.min(10),
    }
}

/// Two bins of 90 %, each split at random into one to four promises; each load wants half to twice of its promise; every
/// other set has a neighbour that is promised nothing and wants everything.
fn random(seed: u64, place: Layout, cpus: &CpuSet, order: &Order) -> Scene {
    let mut random = rand_pcg::Pcg64::seed_from_u64(seed);
    let kind = [DutyKind::Open, DutyKind::Closed, DutyKind::Wall][random.random_range(0..3)];
    let mut loads = Vec::new();
    for _ in 0..cpus.len() {
        let parts: Vec<f64> =
            (0..random.random_range(1..=4)).map(|_| random.random_range(0.2..1.0)).collect();
        let sum: f64 = parts.iter().sum();
        for part in parts {
            let promised = (900.0 * part / sum).floor() / 10.0;
            let wanted: f64 = (promised * random.random_range(0.5..2.0)).clamp(1.0, 98.0);
            let period = Duration::from_millis(random.random_range(20..200));
            let name = format!("r{}", loads.len() + 1);
            let spec = duty(&name, wanted.round(), kind, seed * 100 + loads.len() as u64, period);
            loads.push(Load { spec, promised: Some(promised) });
        }
    }
    let neighbour = seed.is_multiple_of(2);
    if neighbour {
        loads.push(Load { spec: LoadSpec::new(Kind::Spin(Spin {})).named("spin"), promised: None });
    }
    let beside = if neighbour { " next to a spinner" } else { "" };
    Scene {
        name: format!("set {seed}: {} promises {kind}{beside}", loads.len() - usize::from(neighbour)),
        place,
        cpus: cpus.clone(),
        loads,
        absent: None,
        seconds: order.seconds,
    }
}

/// Runs a scene and judges it second by second.
fn play(scene: &Scene, sink: &mut ConsoleSink) -> Result<Vec<Row>, Failure> {
    let binary = std::env::current_exe().context("cannot find this program's own file")?;
    let mut specs: Vec<LoadSpec> = scene.loads.iter().map(|load| load.spec.clone()).collect();
    for spec in &mut specs {
        if spec.common.start_at.is_some() {
            // Time for starting everything, and to settle.
            spec.common.start_at = Some(StartAt(wall_ns() + (u64::from(SETTLE_S) + 2) * 1_000_000_000));
        }
    }
    let tenants = Starter::new(binary, scene.place)
        .on_cpus(scene.cpus.clone())
        .hold(&specs)
        .context("cannot start the loads")?;
    let state = PrivateDir::temporary().context("cannot make a directory for a journal")?;
    let mut agent = Agent::new(config(scene, &tenants, &state)?, sink).map_err(super::loop_failed)?;
    let gauge = tenants.gauge();
    tenants.release();
    let played = watch(scene, &mut agent, &gauge, &tenants, sink);
    let back = agent.close("prove");
    drop(tenants);
    let rows = played?;
    if !back.is_clean() {
        return Err(refused!(super::run::left(&back)));
    }
    Ok(rows)
}

fn config(scene: &Scene, tenants: &Tenants, state: &PrivateDir) -> Result<Config, Failure> {
    let guarantee = |scope: String, pct: f64| -> Result<Guarantee, Failure> {
        Ok(Guarantee {
            scope: Scope::parse(&[&scope]).map_err(|e| Failure::Usage(e.into()))?,
            name: scope,
            promise: Reservation { cpu: Some(CpuAmount::OfCpu(pct)), ..Reservation::default() },
            source: Source::Config,
        })
    };
    let mut stated = Vec::new();
    // Nobody has this number: pids end at 2^22.
    stated.extend(scene.absent.map(|pct| guarantee("pid:4194304".to_owned(), pct)).transpose()?);
    for member in &tenants.members {
        if let Some(pct) = scene.loads[member.spec].promised {
            stated.push(guarantee(format!("pid:{}", member.pid), pct)?);
        }
    }
    let texts: Vec<String> = tenants.members.iter().map(|m| format!("pid:{}", m.pid)).collect();
    let scope = Scope::parse(&texts).map_err(|e| Failure::Usage(e.into()))?;
    let mut config = Config::new(scope, state.path());
    config.history = false;
    config.known = tenants.members.iter().filter_map(|m| Some((m.tid, m.wanted_pct?))).collect();
    config.guarantees = Guarantees { stated, only: true, ..Guarantees::default() };
    Ok(config)
}

fn watch(
    scene: &Scene,
    agent: &mut Agent,
    gauge: &LoadSampler,
    tenants: &Tenants,
    sink: &mut ConsoleSink,
) -> Result<Vec<Row>, Failure> {
    let spikes = scene.loads.iter().any(|load| load.spec.common.start_at.is_some());
    // The spike comes two seconds into what is judged.
    for _ in 0..SETTLE_S {
        agent.measure(Duration::from_secs(1), sink).map_err(super::loop_failed)?;
    }
    let mut readings: Vec<Reading> = vec![gauge.read()];
    for _ in 0..scene.seconds + if spikes { 2 } else { 0 } {
        if agent.measure(Duration::from_secs(1), sink).map_err(super::loop_failed)?.is_none() {
            break;
        }
        readings.push(gauge.read());
    }
    let mut rows = Vec::new();
    let known = tenants.known();
    for member in &tenants.members {
        let load = &scene.loads[member.spec];
        let Some(index) = known.iter().position(|k| k.tid == member.tid) else { continue };
        let between = |from: &Reading, to: &Reading| -> Option<Window> {
            let ((t0, r0, w0), (t1, r1, w1)) = (from.tasks[index]?, to.tasks[index]?);
            let seconds = t1.checked_sub(t0)? as f64 / 1e9;
            let got_s = r1.checked_sub(r0)? as f64 / 1e9;
            let waited = w1.checked_sub(w0)? as f64 / 1e9;
            Some(Window {
                seconds,
                got_s,
                waited_s: Some(waited),
                runnable_s: Some((got_s + waited).min(seconds)),
                wanted_pct: member.wanted_pct,
            })
        };
        let windows: Vec<Window> =
            readings.windows(2).filter_map(|pair| between(&pair[0], &pair[1])).collect();
        let whole = windows.iter().copied().reduce(Window::plus).unwrap_or_default();
        let judged: Vec<_> = windows.iter().filter_map(|w| Some(judge(load.promised?, w))).collect();
        let broken =
            |mean: Mean| judged.iter().map(move |j| j.by(mean)).filter(|v| v.state == PromiseState::Broken);
        let short: Vec<f64> = broken(Mean::Supply).map(|v| v.short_pct).collect();
        rows.push(Row {
            scene: scene.name.clone(),
            place: format!("{:?}", scene.place),
            load: member.name.clone(),
            promised: load.promised,
            wanted: member.wanted_pct,
            got: whole.got_pct(),
            while_runnable: whole.while_runnable_pct(),
            seconds: windows.len(),
            broken: short.len(),
            badly: short.iter().filter(|s| **s > BADLY).count(),
            worst: short.iter().copied().fold(0.0, f64::max),
            rate_broken: broken(Mean::Rate).count(),
        });
    }
    Ok(rows)
}

pub(super) fn table() -> Table<Row> {
    Table::new(vec![
        Field::text("scene", "SCENE", |r: &Row| r.scene.clone()),
        Field::text("place", "PLACE", |r: &Row| r.place.clone()),
        Field::text("load", "LOAD", |r: &Row| r.load.clone()),
        Field::number("promised_pct", "PROMISED %", 1, |r: &Row| r.promised),
        Field::number("wanted_pct", "WANTED %", 0, |r: &Row| r.wanted),
        Field::number("got_pct", "GOT %", 1, |r: &Row| Some(r.got).filter(|_| r.seconds > 0)),
        Field::number("while_runnable_pct", "WHILE RUNNABLE %", 1, |r: &Row| r.while_runnable),
        Field::integer("seconds", "SECONDS", |r: &Row| Some(r.seconds as i64)),
        Field::new("broken_s", "BROKEN s", |r: &Row| {
            r.promised.map_or(Value::Absent, |_| Value::Integer(r.broken as i64))
        }),
        Field::new("broken_2_points_s", "BY > 2 POINTS", |r: &Row| {
            r.promised.map_or(Value::Absent, |_| Value::Integer(r.badly as i64))
        }),
        Field::number("worst_points", "WORST POINTS", 1, |r: &Row| r.promised.map(|_| r.worst)),
        Field::new("rate_broken_s", "SHORT AS RATE s", |r: &Row| {
            r.promised.map_or(Value::Absent, |_| Value::Integer(r.rate_broken as i64))
        }),
    ])
}

/// Scenes of which something was judged.
fn judged(rows: &[Row]) -> usize {
    rows.iter()
        .filter(|row| row.seconds > 0)
        .map(|row| (&row.scene, &row.place))
        .collect::<BTreeSet<_>>()
        .len()
}

fn print(global: &Global, rows: &[Row], asked: usize) -> Result<(), Failure> {
    let judged = judged(rows);
    let promised = || rows.iter().filter(|r| r.promised.is_some());
    let seconds: usize = promised().map(|r| r.seconds).sum();
    let (broken, badly): (usize, usize) =
        (promised().map(|r| r.broken).sum(), promised().map(|r| r.badly).sum());
    let rate_broken: usize = promised().map(|r| r.rate_broken).sum();
    let share = |n: usize| match seconds {
        0 => "?".to_owned(),
        all => format!("{:.1} %", 100.0 * n as f64 / all as f64),
    };
    match global.output {
        Format::Json => {
            let document = json!({
                "schema": "evenkeel.prove-promises/v1", "loads": table().json(rows), "asked": asked, "judged": judged, "seconds": seconds,
                "broken_s": broken, "broken_2_points_s": badly, "rate_broken_s": rate_broken,
            });
            outln!("{document:#}")?;
        }
        Format::Csv => out!("{}", table().csv(rows))?,
        Format::Text | Format::Svg => {
            out!("{}", table().text(rows, width(std::io::stdout().is_terminal())))?;
            outln!(
                "\n{judged} of {asked} scenes, {seconds} seconds of promises: as supply {broken} broken ({}), {badly} by more than {BADLY} points \
                 ({}); as rate {rate_broken} ({}).",
                share(broken),
                share(badly),
                share(rate_broken),
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_told_from_a_whole() {
        let row = |scene: &str, place: &str, seconds| Row {
            scene: scene.into(),
            place: place.into(),
            seconds,
            ..Row::default()
        };
        assert_eq!(
            judged(&[
                row("a", "x", 15),
                row("a", "x", 15),
                row("a", "y", 1),
                row("b", "x", 9),
                row("c", "x", 0)
            ]),
            3
        );
    }

    #[test]
    fn where_no_second_was_judged_nothing_was_kept() {
        let row =
            |seconds, badly| Row { promised: Some(40.0), seconds, broken: badly, badly, ..Row::default() };
        assert_eq!((status(&[]), status(&[row(0, 0)])), (1, 1));
        assert_eq!((status(&[row(100, 1)]), status(&[row(100, 2)])), (0, 1));
    }
}
