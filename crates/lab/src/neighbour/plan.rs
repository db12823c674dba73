//! What is tried: services, batch work and its load, and what keeps the one from the other. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Name of the experiment on the command line.
pub const NAME: &str = "neighbour";
/// What it shows, one sentence.
pub const ABOUT: &str =
    "a service next to more and more batch work: what it feels by default, under each lever, under evenkeel";

/// Starting and ending what a cell needs, seconds; measured: 0.3 to 0.5.
const CELL_S: f64 = 0.6;
/// The same for evenkeel, which undoes what it did; measured: 0.3.
const EVENKEEL_S: f64 = 0.5;

evenkeel_base::named! {
/// What answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// The built-in probe (`evenkeel load wakeup`): a thread a CPU, woken once a millisecond for 0.1 ms of work.
    Wakeup = "wakeup",
    /// A redis that is asked for 500 bytes.
    Redis = "redis",
    /// A memcached, likewise.
    Memcached = "memcached",
    /// An nginx with one worker, likewise.
    Nginx = "nginx",
}
}

impl Service {
    /// The program it needs; `None` for the built-in one.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Self::Wakeup => None,
            Self::Redis => Some("redis-server"),
            Self::Memcached => Some("memcached"),
            Self::Nginx => Some("nginx"),
        }
    }
}

evenkeel_base::named! {
/// The work next to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Batch {
    /// Busy loops (`evenkeel load spin`).
    Loops = "loops",
    /// Streams through memory (`evenkeel load stream`): whole CPUs only.
    Stream = "stream",
    /// Compilers, one after another: whole CPUs only.
    Compile = "compile",
}
}

impl Batch {
    /// The program it needs; `None` for built-in ones.
    pub fn program(self) -> Option<&'static str> {
        (self == Self::Compile).then_some("cc")
    }

    /// Whether it can ask for so much, percent of ONE CPU.
    fn can_be(self, load_pct: u32) -> bool {
        self == Self::Loops || load_pct.is_multiple_of(100)
    }
}

evenkeel_base::named! {
/// What keeps batch work from the service's way. It is set for batch work, in a cgroup of its own next to the service's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// There is no batch work.
    #[value(skip)]
    Alone = "alone",
    /// Nothing.
    Default = "kernel default",
    /// An idle cgroup.
    CpuIdle = "cpu.idle",
    /// SCHED_IDLE for each task.
    SchedIdle = "SCHED_IDLE",
    /// nice 19 for each task.
    Nice = "nice 19",
    /// The least weight of the cgroup.
    Weight = "least weight",
    /// Whatever `evenkeel run --service --background` chooses, from its start on.
    Evenkeel = "evenkeel",
}
}

impl Arm {
    /// Those with batch work.
    pub const BESIDE: [Self; 6] =
        [Self::Default, Self::CpuIdle, Self::SchedIdle, Self::Nice, Self::Weight, Self::Evenkeel];

    /// Whether it is a setting that somebody makes by hand.
    pub fn by_hand(self) -> bool {
        matches!(self, Self::CpuIdle | Self::SchedIdle | Self::Nice | Self::Weight)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    pub services: Vec<Service>,
    pub batches: Vec<Batch>,
    /// CPU that batch work asks for, percent of ONE CPU, ascending; 0 is measured anyway.
    pub loads_pct: Vec<u32>,
    /// Arms with batch work.
    pub arms: Vec<Arm>,
    /// Time in which batch work runs before anything is measured, seconds.
    pub settle_s: f64,
    /// Measured time of a cell, seconds.
    pub seconds: f64,
    /// Time from the start of evenkeel that is measured apart, its trial included, seconds.
    pub decide_s: f64,
    /// How often, everything started again.
    pub repetitions: u32,
    /// The short form.
    pub quick: bool,
}

/// One set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Point {
    /// What answers.
    pub service: Service,
    /// What runs next to it; `None` for [`Arm::Alone`].
    pub batch: Option<Batch>,
    /// CPU that it asks for, percent of ONE CPU.
    pub load_pct: u32,
    /// What keeps it from the service's way.
    pub arm: Arm,
}

impl Point {
    /// The service without batch work.
    pub fn alone(service: Service) -> Self {
        Self { service, batch: None, load_pct: 0, arm: Arm::Alone }
    }

    /// The same with another arm.
    #[must_use]
    pub fn under(self, arm: Arm) -> Self {
        Self { arm, ..self }
    }

    /// `redis next to loops of 400 %`.
    pub fn scene(&self) -> String {
        match self.batch {
            Some(batch) => format!("{} next to {batch} of {} %", self.service, self.load_pct),
            None => self.service.to_string(),
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.scene(), self.arm)
    }
}

impl Options {
    /// The ladder, scaled to this host: a quarter of its CPUs, half, all of them, and twice as much.
    pub fn defaults(quick: bool, cpus: u32) -> Self {
        let of = |quarters: u32| 25 * cpus.max(1).saturating_mul(quarters);
        Self {
            services: if quick { vec![Service::Wakeup] } else { vec![Service::Wakeup, Service::Redis] },
            batches: vec![Batch::Loops],
            loads_pct: if quick { vec![of(8)] } else { vec![of(1), of(2), of(4), of(8)] },
            arms: if quick { vec![Arm::Default, Arm::CpuIdle, Arm::Evenkeel] } else { Arm::BESIDE.to_vec() },
            settle_s: if quick { 0.3 } else { 1.0 },
            seconds: if quick { 1.5 } else { 5.0 },
            decide_s: if quick { 8.0 } else { 45.0 },
            repetitions: if quick { 3 } else { 5 },
            quick,
        }
    }

    /// The points, in order: each service alone, then next to each batch.
    pub fn points(&self) -> Result<Vec<Point>, String> {
        if self.repetitions == 0 || self.services.is_empty() {
            return Err("at least one service and one repetition".into());
        }
        for (name, seconds) in [("seconds", self.seconds), ("decide-seconds", self.decide_s)] {
            if !(0.5..=86_400.0).contains(&seconds) {
                return Err(format!("--{name} {seconds}: expected 0.5 to 86400"));
            }
        }
        let mut points = Vec::new();
        for &service in &self.services {
            points.push(Point::alone(service));
            for &batch in &self.batches {
                let loads = self.loads_pct.iter().filter(|load| **load > 0 && batch.can_be(**load));
                for &load_pct in loads {
                    let beside = Point { service, batch: Some(batch), load_pct, arm: Arm::Default };
                    points.extend(self.arms.iter().map(|arm| beside.under(*arm)));
                }
            }
        }
        let mut distinct = points.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() < points.len() {
            return Err("a service, a batch, a load or an arm is given twice".into());
        }
        if points.iter().all(|point| point.batch.is_none()) {
            return Err("nothing runs next to the service: give --load above 0 (stream and compile take whole CPUs: 100, 200, ..)".into());
        }
        Ok(points)
    }

    /// How long a point is measured: from the start of evenkeel, where it has a part, and after that, seconds.
    pub fn measured_s(&self, arm: Arm) -> f64 {
        self.seconds + if arm == Arm::Evenkeel { self.decide_s } else { 0.0 }
    }

    /// How long all of it is expected to take, seconds, report included; `None` of what makes no sense.
    pub fn planned_s(&self) -> Option<f64> {
        let cell = |point: &Point| {
            let undo = if point.arm == Arm::Evenkeel { EVENKEEL_S } else { 0.0 };
            Some(CELL_S + self.settle_s + self.measured_s(point.arm) + undo)
        };
        crate::runner::all_s(self.points().ok()?.iter().map(cell), self.repetitions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_fits_the_host_and_the_short_form_a_minute() {
        let two = Options::defaults(false, 2);
        assert_eq!(two.loads_pct, [50, 100, 200, 400]);
        assert_eq!(Options::defaults(false, 8).loads_pct, [200, 400, 800, 1600]);
        for cpus in 1..=40 {
            let quick = Options::defaults(true, cpus).planned_s().unwrap();
            assert!(quick <= 60.0, "{cpus} CPUs: {quick} s");
        }
        // One of each alone, then six arms on four steps.
        assert_eq!(two.points().unwrap().len(), 2 * (1 + 6 * 4));
        assert!(two.planned_s().unwrap() > 1800.0);
    }

    #[test]
    fn whole_cpus_are_asked_of_what_cannot_be_less() {
        let options = Options { batches: vec![Batch::Stream], ..Options::defaults(false, 2) };
        let loads: Vec<u32> =
            options.points().unwrap().iter().map(|p| p.load_pct).filter(|l| *l > 0).collect();
        assert!(loads.contains(&100) && !loads.contains(&50), "{loads:?}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = Options::defaults(true, 2);
        for (wrong, part) in [
            (Options { loads_pct: vec![0], ..good.clone() }, "--load"),
            (Options { loads_pct: vec![50], batches: vec![Batch::Compile], ..good.clone() }, "whole CPUs"),
            (Options { services: Vec::new(), ..good.clone() }, "at least one service"),
            (Options { loads_pct: vec![100, 100], ..good.clone() }, "twice"),
            (Options { seconds: 0.1, ..good.clone() }, "--seconds"),
            (Options { decide_s: f64::NAN, ..good.clone() }, "--decide-seconds"),
        ] {
            assert!(wrong.points().unwrap_err().contains(part), "{part}");
        }
        assert!(good.points().is_ok());
    }
}
