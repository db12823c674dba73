use proptest::prelude::*;

use super::*;

/// A CPU in virtual time: others take it during given intervals, and time passes only by burning and sleeping.
#[derive(Default)]
struct Virtual {
    now: u64,
    cpu: u64,
    /// Others hold the CPU: (from, until), ascending.
    taken: Vec<(u64, u64)>,
    end: u64,
    cycles: u64,
    bursts: Vec<u64>,
    wanted: u64,
    dropped: u64,
}

impl Virtual {
    fn until(end: u64) -> Self {
        Self { end, ..Self::default() }
    }

    /// Others take the CPU for `hold` out of every `every`.
    fn contended(mut self, every: u64, hold: u64) -> Self {
        self.taken = (0..self.end.div_ceil(every)).map(|i| (i * every, i * every + hold)).collect();
        self
    }

    fn wait_for_cpu(&mut self) {
        let next = self.taken.partition_point(|t| t.0 <= self.now);
        if let Some((_, until)) = next.checked_sub(1).map(|i| self.taken[i]) {
            self.now = self.now.max(until);
        }
    }
}

impl Machine for Virtual {
    fn now_ns(&mut self) -> u64 {
        self.now
    }
    fn cpu_ns(&mut self) -> u64 {
        self.cpu
    }
    fn burn(&mut self, mut ns: u64) {
        while ns > 0 {
            self.wait_for_cpu();
            let next =
                self.taken.get(self.taken.partition_point(|t| t.0 <= self.now)).map_or(u64::MAX, |t| t.0);
            let piece = ns.min(next - self.now);
            self.now += piece;
            self.cpu += piece;
            ns -= piece;
        }
    }
    fn sleep_until(&mut self, at: u64) {
        self.bursts.push(self.cpu);
        self.now = self.now.max(at);
        self.wait_for_cpu();
    }
    fn over(&mut self) -> bool {
        self.now >= self.end
    }
    fn begin_cycle(&mut self) -> bool {
        self.cycles += 1;
        true
    }
    fn wants(&mut self, ns: u64) {
        self.wanted += ns;
    }
    fn drops(&mut self, ns: u64) {
        self.dropped += ns;
    }
}

const MS: u64 = 1_000_000;

fn duty(kind: DutyKind, percent: f64, period_ms: u64, jitter: f64) -> Duty {
    Duty { percent, period: Duration::from_millis(period_ms), jitter, kind, seed: 7 }
}

fn run(duty: &Duty, mut machine: Virtual) -> Virtual {
    duty.run_on(duty.periods(0), &mut machine);
    machine
}

#[test]
fn alone_every_kind_gets_what_it_wants() {
    for kind in [DutyKind::Wall, DutyKind::Closed, DutyKind::Open] {
        for jitter in [0.0, 50.0, 100.0] {
            let m = run(&duty(kind, 20.0, 10, jitter), Virtual::until(10_000 * MS));
            let share = m.cpu as f64 / m.now as f64;
            assert!((share - 0.2).abs() < 0.002, "{kind} {jitter}: {share}");
        }
    }
}

#[test]
fn wall_loses_what_others_take_within_the_spin() {
    // 40 ms of work in 100; others hold the CPU for the first 10 of every 100: 30 are left, the period stays.
    let m = run(
        &duty(DutyKind::Wall, 40.0, 100, 0.0),
        Virtual { taken: vec![(5 * MS, 15 * MS)], ..Virtual::until(100 * MS) },
    );
    assert_eq!((m.cpu, m.now, m.cycles), (30 * MS, 100 * MS, 1));
}

#[test]
fn closed_gets_its_work_and_stretches_the_period() {
    let m = run(
        &duty(DutyKind::Closed, 40.0, 100, 0.0),
        Virtual { taken: vec![(5 * MS, 15 * MS)], ..Virtual::until(110 * MS) },
    );
    assert_eq!((m.cpu, m.now, m.cycles), (40 * MS, 110 * MS, 1));
}

#[test]
fn open_keeps_the_backlog_and_catches_up() {
    // Nothing for the first second, then the CPU is free: 40 % of all the time is got in the end.
    let m = run(
        &duty(DutyKind::Open, 40.0, 100, 0.0),
        Virtual { taken: vec![(0, 1000 * MS)], ..Virtual::until(3000 * MS) },
    );
    assert_eq!(m.dropped, 0);
    assert_eq!(m.wanted, 1200 * MS);
    assert_eq!(m.cpu, 1200 * MS);
}

#[test]
fn the_backlog_is_bounded_and_what_is_dropped_is_counted() {
    // 60 s without CPU at 50 %: 30 s of work arrived, at most 10 s are kept.
    let m = run(
        &duty(DutyKind::Open, 50.0, 100, 0.0),
        Virtual { taken: vec![(0, 60_000 * MS)], ..Virtual::until(90_000 * MS) },
    );
    let given = m.cpu + m.dropped;
    assert!(m.dropped >= 19_900 * MS && m.dropped <= 20_100 * MS, "{}", m.dropped);
    assert!(given <= m.wanted && m.wanted - given <= 100 * MS, "{given} of {}", m.wanted);
}

#[test]
fn periods_are_a_function_of_the_seed_and_stay_in_bounds() {
    let d = duty(DutyKind::Closed, 25.0, 100, 50.0);
    let a: Vec<Period> = d.periods(0).take(2000).collect();
    assert_eq!(a, d.periods(0).take(2000).collect::<Vec<_>>());
    assert_ne!(a, d.periods(1).take(2000).collect::<Vec<_>>());
    assert!(a.iter().all(|p| (50 * MS..=150 * MS).contains(&p.length_ns)));
    let mean = a.iter().map(|p| p.length_ns as f64).sum::<f64>() / 2000.0;
    // Uniform on 50..150 ms: standard error of the mean is 28.9 / sqrt(2000) = 0.65 ms.
    assert!((mean / MS as f64 - 100.0).abs() < 3.0, "{mean}");
    assert!(a.iter().any(|p| p.length_ns < 55 * MS) && a.iter().any(|p| p.length_ns > 145 * MS));
    assert!(duty(DutyKind::Wall, 25.0, 100, 0.0).periods(3).take(9).all(|p| p.length_ns == 100 * MS));
}

#[test]
fn senseless_parameters_are_refused_by_name() {
    for (bad, name) in [
        (duty(DutyKind::Wall, 0.0, 100, 0.0), "--percent"),
        (duty(DutyKind::Wall, -5.0, 100, 0.0), "--percent"),
        (duty(DutyKind::Wall, 101.0, 100, 0.0), "--percent"),
        (duty(DutyKind::Wall, f64::NAN, 100, 0.0), "--percent"),
        (duty(DutyKind::Wall, 10.0, 100, 101.0), "--jitter"),
        (duty(DutyKind::Wall, 10.0, 100, f64::NAN), "--jitter"),
        (duty(DutyKind::Wall, 10.0, 0, 0.0), "--period"),
    ] {
        let error = bad.check().unwrap_err();
        assert!(error.contains(name), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No kind ever gets more than it wants, and with the CPU taken part of the time: closed >= wall.
    #[test]
    fn got_never_exceeds_wanted(
        percent in 1.0f64..100.0,
        period in 5u64..200,
        jitter in 0.0f64..80.0,
        every in 3u64..50,
        hold_pct in 0u64..90,
    ) {
        let end = 3_000 * MS;
        let mut got = Vec::new();
        for kind in [DutyKind::Wall, DutyKind::Closed, DutyKind::Open] {
            let load = duty(kind, percent, period, jitter);
            let m = run(&load, Virtual::until(end).contended(every * MS, every * MS * hold_pct / 100));
            prop_assert!(m.cpu <= m.wanted + CHUNK_NS, "{kind}: got {} of {}", m.cpu, m.wanted);
            got.push(m.cpu as f64 / m.now as f64);
        }
        // An open load gets what it wants where that is free, less what the last period leaves open.
        let free = 1.0 - hold_pct as f64 / 100.0;
        let expected = (percent / 100.0).min(free);
        prop_assert!(got[2] <= expected + 0.25, "open got {} of {expected}", got[2]);
        prop_assert!(got[1] <= percent / 100.0 + 0.25);
    }
}
