//! How many measurements each method of search needs: five test functions, ten seeds each.
//!
//! Random search makes `N` measurements; what it has found then (median of the seeds) is the value to reach. Told is after
//! how many measurements the other methods have found that value (median of the seeds; `>N` when not within N).
//!
//! Run: cargo run --release -p evenkeel-tune --example search

use std::f64::consts::PI;
use std::time::Instant;

use evenkeel_tune::search::{Domain, Method, Outcome, Parameter, Point, Rules, Search, Space, Value};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

struct Function {
    name: &'static str,
    space: Vec<Domain>,
    at: fn(&Point) -> f64,
    noise: f64,
}

fn real(low: f64, high: f64) -> Domain {
    Domain::Real { low, high, log: false }
}

fn number(value: Value) -> f64 {
    match value {
        Value::Integer(v) => v as f64,
        Value::Real(v) => v,
        Value::Choice(v) => v as f64,
    }
}

fn branin(p: &Point) -> f64 {
    let (x, y) = (number(p[0]), number(p[1]));
    (y - 5.1 / (4.0 * PI * PI) * x * x + 5.0 / PI * x - 6.0).powi(2)
        + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x.cos()
        + 10.0
}

fn hartmann6(p: &Point) -> f64 {
    const A: [[f64; 6]; 4] = [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ];
    const P: [[f64; 6]; 4] = [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ];
    let one = |(k, alpha): (usize, &f64)| {
        let inner: f64 = (0..6).map(|i| A[k][i] * (number(p[i]) - P[k][i]).powi(2)).sum();
        alpha * (-inner).exp()
    };
    -[1.0, 1.2, 3.0, 3.2].iter().enumerate().map(one).sum::<f64>()
}

fn rosenbrock(p: &Point) -> f64 {
    let pairs = p.windows(2).map(|w| (number(w[0]), number(w[1])));
    pairs.map(|(x, y)| 100.0 * (y - x * x).powi(2) + (1.0 - x).powi(2)).sum()
}

fn ackley(p: &Point) -> f64 {
    let n = p.len() as f64;
    let squares = p.iter().map(|v| number(*v).powi(2)).sum::<f64>() / n;
    let waves = p.iter().map(|v| (2.0 * PI * number(*v)).cos()).sum::<f64>() / n;
    20.0 + 1f64.exp() - 20.0 * (-0.2 * squares.sqrt()).exp() - waves.exp()
}

/// A service as one meets them: throughput rises with threads up to the CPUs, sinks slowly beyond; a quota has to be
/// paid for; a slice on a log scale has an optimum; of three modes one is best, and not with many threads.
fn service(p: &Point) -> f64 {
    let (threads, quota, slice, mode) = (number(p[0]), number(p[1]), number(p[2]), number(p[3]) as usize);
    let cpus = (quota / 100.0).min(threads).min(8.0);
    let crowd = 1.0 / (1.0 + 0.04 * (threads - 8.0).max(0.0));
    let tuned = 1.0 - 0.15 * (slice / 3.0).ln().powi(2) / (1.0 + (slice / 3.0).ln().powi(2));
    let kind = [0.8, 1.0, if threads < 6.0 { 1.1 } else { 0.9 }][mode];
    -(100.0 * cpus * crowd * tuned * kind - 0.35 * quota)
}

fn functions() -> Vec<Function> {
    let choice = Domain::Choice { values: vec!["a".into(), "b".into(), "c".into()] };
    let mixed = vec![
        Domain::Integer { low: 1, high: 64, log: true },
        real(20.0, 1600.0),
        Domain::Real { low: 0.1, high: 100.0, log: true },
        choice,
    ];
    vec![
        Function {
            name: "Branin, 2 reals",
            space: vec![real(-5.0, 10.0), real(0.0, 15.0)],
            at: branin,
            noise: 0.0,
        },
        Function { name: "Rosenbrock, 3 reals", space: vec![real(-2.0, 2.0); 3], at: rosenbrock, noise: 0.0 },
        Function { name: "Ackley, 4 reals", space: vec![real(-16.0, 24.0); 4], at: ackley, noise: 0.0 },
        Function { name: "Hartmann, 6 reals", space: vec![real(0.0, 1.0); 6], at: hartmann6, noise: 0.0 },
        Function { name: "service, mixed, noise 3 %", space: mixed, at: service, noise: 15.0 },
    ]
}

/// The true value of the best point known after each measurement.
fn walk(function: &Function, method: Method, seed: u64, n: usize) -> Vec<f64> {
    let parameters = function.space.iter().enumerate();
    let parameters =
        parameters.map(|(i, d)| Parameter { name: format!("x{i}"), domain: d.clone() }).collect();
    let Ok(space) = Space::new(parameters) else { return Vec::new() };
    // With noise the best is chosen by what was measured, but judged by the truth; no method repeats runs here, so
    // that measurements are counted alike.
    let mut search = Search::new(space, method, Rules::exact(seed));
    let mut rng = Pcg32::seed_from_u64(seed + 1000);
    let mut out = Vec::new();
    for left in (1..=n).rev() {
        let Some(ask) = search.ask(Some(left)) else { break };
        // The sum of 12 even draws is nearly normal with variance 1.
        let normal = (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
        let loss = (function.at)(&ask.point) + function.noise * normal;
        search.tell(&ask, Outcome::of(loss));
        out.extend(search.history().best().map(|arm| (function.at)(&arm.point)));
    }
    out
}

/// The median; not a number of nothing.
fn median(values: Vec<f64>) -> f64 {
    evenkeel_base::stats::median(values).unwrap_or(f64::NAN)
}

fn main() {
    let mut missed = 0;
    for n in [40, 100] {
        println!(
            "\nvalue reached by {n} random measurements (medians of 10 seeds); measurements the others need for it"
        );
        println!(
            "{:28} {:>10} {:>8} {:>8} {:>10} {:>9}",
            "", "value", "bayesian", "gradient", "coordinate", "ms/point"
        );
        for function in functions() {
            let all = |method| -> Vec<Vec<f64>> { (0..10).map(|s| walk(&function, method, s, n)).collect() };
            let reached = median(all(Method::Random).iter().filter_map(|w| w.last().copied()).collect());
            let needed = |walks: Vec<Vec<f64>>| {
                let one = |w: &Vec<f64>| {
                    w.iter().position(|v| *v <= reached).map_or(f64::INFINITY, |i| i as f64 + 1.0)
                };
                median(walks.iter().map(one).collect())
            };
            let started = Instant::now();
            let bayesian = needed(all(Method::Bayesian));
            let ms = started.elapsed().as_secs_f64() * 100.0 / n as f64;
            let (gradient, coordinate) = (needed(all(Method::Gradient)), needed(all(Method::Coordinate)));
            let show = |x: f64| if x.is_finite() { format!("{x:.1}") } else { format!(">{n}") };
            println!(
                "{:28} {reached:>10.3} {:>8} {:>8} {:>10} {ms:>9.2}",
                function.name,
                show(bayesian),
                show(gradient),
                show(coordinate)
            );
            missed += u32::from(bayesian > n as f64 / 2.0);
        }
    }
    println!("\nBayesian search needed more than half of random's measurements in {missed} of 10 cases");
    std::process::exit(i32::from(missed > 0));
}
