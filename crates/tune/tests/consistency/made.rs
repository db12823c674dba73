//! Made-up searches: a file, and the trials of a world that is known.

use std::path::Path;

use evenkeel_tune::search::{Outcome, Reason, Rules, Search};
use evenkeel_tune::{Settings, TrialRecord, Tune};

use crate::shared::Random;

impl Random {
    /// Student's t with three degrees of freedom, of variance 1.
    fn heavy(&mut self) -> f64 {
        let chi: f64 = (0..3).map(|_| self.normal().powi(2)).sum();
        self.normal() / chi.sqrt()
    }
}

/// What is known of the world that trials are made in.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub max: bool,
    pub method: &'static str,
    pub finalists: usize,
    pub repeats: usize,
    pub trials: usize,
    pub scale: f64,
    /// Every worker adds (or, for `min`, takes) this part; and 3 workers give this much more.
    pub slope: f64,
    pub planted: f64,
    pub noise: f64,
    pub heavy: bool,
    pub price: f64,
    /// `p99` must be below 20; it is this at one worker, and grows by so much with each.
    pub constraint: Option<(f64, f64)>,
    pub present: bool,
    pub failing: f64,
    /// Trials come in any order with any reason: records of a search that was cut off, or of another version.
    pub wild: bool,
    pub real: bool,
}

/// Anything.
pub fn world(r: &mut Random) -> World {
    World {
        max: r.uniform() < 0.6,
        method: r.pick(&["random", "random", "exhaustive", "coordinate", "bayesian"]),
        finalists: r.pick(&[0, 1, 2, 3, 3]),
        repeats: r.pick(&[1, 2, 3, 3, 4]),
        trials: r.pick(&[1, 2, 5, 9, 16, 24, 24, 40]),
        scale: r.pick(&[2e-6, 0.3, 100.0, 100.0, 45_000.0, 3e9]),
        slope: r.pick(&[0.0, 0.0, 0.01, 0.1]),
        planted: r.pick(&[0.0, 0.0, 0.02, 0.3, 0.3, -0.1]),
        noise: r.pick(&[0.0, 0.001, 0.01, 0.01, 0.05, 0.3]),
        heavy: r.uniform() < 0.3,
        price: r.pick(&[0.0, 0.0, 0.02, 0.2]),
        constraint: r.pick(&[
            None,
            None,
            Some((12.0, 1.0)),
            Some((21.0, -1.0)),
            Some((30.0, 1.0)),
            Some((19.9, 0.05)),
        ]),
        present: r.uniform() < 0.85,
        failing: r.pick(&[0.0, 0.0, 0.1, 0.5, 1.0]),
        wild: r.uniform() < 0.3,
        real: r.uniform() < 0.3,
    }
}

impl World {
    /// The file that describes the search.
    pub fn tune(&self) -> Tune {
        let present = |v: &str| if self.present { format!("present={v}\n") } else { String::new() };
        let mut text =
            format!("[[parameter]]\nname='workers'\nkind='integer'\nlow=1\nhigh=5\n{}", present("1"));
        if self.real {
            text +=
                &format!("[[parameter]]\nname='ratio'\nkind='real'\nlow=0.1\nhigh=0.9\n{}", present("0.5"));
        }
        let ratio = if self.real { ",'{ratio}'" } else { "" };
        text += &format!(
            "[measure]\ncommand=['a','{{workers}}'{ratio}]\n[objective]\nname='throughput'\nunit='rps'\ngoal='{}'\n\
             account='real_s'\n",
            if self.max { "max" } else { "min" }
        );
        if self.price != 0.0 {
            text += &format!("price={{workers={}}}\n", self.price * self.scale);
        }
        text += "[[quantity]]\nname='p99'\nunit='ms'\naccount='cpu_s'\n";
        text += &format!(
            "[search]\nmethod='{}'\nfinalists={}\nrepeats={}\n[budget]\ntrials={}\n",
            self.method, self.finalists, self.repeats, self.trials
        );
        if self.constraint.is_some() {
            text = format!("constraints=['p99 < 20']\n{text}");
        }
        Tune::parse(Path::new("made.toml"), &text).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    pub fn price_each(&self) -> f64 {
        self.price * self.scale
    }

    fn values(&self, workers: f64, r: &mut Random) -> Vec<f64> {
        let noise = self.noise * if self.heavy { r.heavy() } else { r.normal() };
        let better = self.slope * workers + if workers == 3.0 { self.planted } else { 0.0 };
        let sign = if self.max { 1.0 } else { -1.0 };
        let (p99, each) = self.constraint.unwrap_or((5.0, 0.0));
        vec![
            self.scale * (1.0 + sign * better + noise),
            (p99 + each * (workers - 1.0)) * (1.0 + self.noise * r.normal()),
        ]
    }

    fn record(&self, number: usize, settings: Settings, reason: &str, r: &mut Random) -> TrialRecord {
        let workers: f64 = settings.0["workers"].parse().unwrap();
        let failed = number > 1 && r.uniform() < self.failing;
        TrialRecord {
            number,
            reason: reason.into(),
            values: (!failed).then(|| self.values(workers, r)),
            error: failed.then(|| format!("it exited with {number}")),
            started_ns: 1,
            seconds: 0.5 + r.uniform(),
            settings,
        }
    }

    /// The trials that the search itself asks for, or any.
    pub fn records(&self, tune: &Tune, r: &mut Random) -> Vec<TrialRecord> {
        let mut out: Vec<TrialRecord> = Vec::new();
        if self.wild {
            for number in 1..=self.trials {
                let late = number * 3 > self.trials * 2;
                let reason = if late { r.pick(&["last-round", "last-round", "new"]) } else { "new" };
                let mut settings = Settings::default().with("workers", r.pick(&["1", "2", "3", "4"]));
                if self.real {
                    settings = settings.with("ratio", r.pick(&["0.5", "0.123456"]));
                }
                out.push(self.record(number, settings, reason, r));
            }
            return out;
        }
        let rules = Rules {
            seed: (r.uniform() * 1e6) as u64,
            repeats: self.repeats,
            finalists: self.finalists,
            levels: 5,
            present: tune.present.clone(),
            warm: Vec::new(),
        };
        let mut search = Search::new(tune.space.clone(), tune.file.search.method, rules);
        for number in 1..=self.trials {
            let Some(ask) = search.ask(Some(self.trials + 1 - number)) else { break };
            let reason = match ask.reason {
                Reason::New => "new",
                Reason::Confirm => "confirm",
                Reason::LastRound => "last-round",
            };
            let record = self.record(number, tune.settings(&ask.point), reason, r);
            let workers: f64 = record.settings.0["workers"].parse().unwrap();
            let outcome = match &record.values {
                Some(values) if self.max => Outcome::of(self.price_each() * workers - values[0]),
                Some(values) => Outcome::of(values[0] + self.price_each() * workers),
                None => Outcome::failed(),
            };
            let excess = record.values.iter().filter(|_| self.constraint.is_some()).map(|v| v[1] - 20.0);
            search.tell(&ask, Outcome { excess: excess.collect(), ..outcome });
            out.push(record);
        }
        out
    }
}
