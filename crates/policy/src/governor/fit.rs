//! Which rule throttles: a window over the last so many seconds, or a bucket that fills above a free rate; and where its
//! threshold is.
//!
//! Both are fitted to what was seen: at every onset the same threshold must have been reached, and never before.

use super::history::History;

/// A rule that explains what was seen. Shares are of one CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// Use over the last `window_s` seconds above `share` is throttled.
    Window {
        /// Length of the window, seconds.
        window_s: f64,
        share: f64,
    },
    /// Use above `free` fills a bucket of `burst_s` CPU seconds; when it is full, throttling lasts `penalty_s`.
    Bucket {
        /// Rate that is free.
        free: f64,
        /// CPU seconds above it that are tolerated.
        burst_s: f64,
        /// How long throttling lasts, seconds.
        penalty_s: f64,
    },
}

impl Threshold {
    /// The rate that can be kept up without throttling.
    pub fn rate(&self) -> f64 {
        match self {
            Self::Window { share, .. } => *share,
            Self::Bucket { free, .. } => *free,
        }
    }
}

/// A rule with how badly it fits: the mean relative error of its thresholds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    pub threshold: Threshold,
    /// Root mean square of relative errors.
    pub error: f64,
    /// How long throttling lasts when the threshold is overstepped by a little after a quiet time, seconds.
    pub costs_s: f64,
}

/// Throttling ends at no less than this share of the use at which it begins.
const LEAST_HYSTERESIS: f64 = 0.4;
/// An onset at a rate of less than so many times the threshold tells it better than those at full speed.
const NEAR: f64 = 1.3;
/// Part of a window over which the rate before an onset is taken.
const BEFORE: f64 = 0.1;
/// Part of a window that a tick may last and still tell where in it an onset was.
const BLUR: f64 = 0.05;
/// Steps of the grids searched.
const STEPS: usize = 60;

fn grid(low: f64, high: f64) -> impl Iterator<Item = f64> {
    let ratio = (high / low).max(1.0).ln();
    (0..=STEPS).map(move |i| low * (ratio * i as f64 / STEPS as f64).exp())
}

/// The best window; `None` before the first throttling has ended (before, its length is anybody's guess).
pub fn window(history: &History) -> Option<Fit> {
    let (onset, end) = (*history.onsets().first()?, *history.ends().first()?);
    let (_, start) = history.most_spread(onset, end);
    let (first, recovered, last) = (onset - start, end - start, history.ticks().last()?.end_s - start);
    if first <= 0.0 || recovered <= first {
        return None;
    }
    // Started fresh, or after a quiet time, the old use begins to leave the window a window's length after the start: then throttling ends.
    // With hysteresis later, up to an onset's length.
    let candidates = grid((first * 1.02).max(recovered * 0.4), (recovered * 1.3).min(last.max(recovered)));
    let mut best: Option<Fit> = None;
    for window_s in candidates {
        let used = |at: f64| history.used(at - window_s, at) / window_s;
        let at_onsets: Vec<f64> = history.onsets().iter().map(|at| used(*at)).collect();
        let share = at_onsets.iter().sum::<f64>() / at_onsets.len() as f64;
        if share <= 0.0 {
            continue;
        }
        // Throttling may end at another use than the one at which it begins, but always at the same.
        let at_ends: Vec<f64> = history.ends().iter().map(|at| used(*at)).collect();
        let low = at_ends.iter().sum::<f64>() / at_ends.len() as f64;
        let onsets: f64 = at_onsets.iter().map(|x| (x / share - 1.0).powi(2)).sum();
        let ends: f64 = at_ends.iter().map(|x| ((x - low) / share).powi(2)).sum();
        // That both are the same is a guess, for as long as nothing better is known.
        let guess = 0.3 / (at_onsets.len() as f64).powi(3) * (low / share - 1.0).powi(2);
        // Nor does one wait until hardly anything is used.
        let lax = (LEAST_HYSTERESIS - low / share).max(0.0).powi(2);
        let (squares, count) = (onsets + ends + guess + lax, at_onsets.len() + at_ends.len());
        let error = (squares / count as f64).sqrt();
        if best.is_none_or(|b| error < b.error) {
            let costs_s = (share - low).max(0.0) * window_s / share;
            let share = lowest(history, window_s, &at_onsets, share);
            best = Some(Fit { threshold: Threshold::Window { window_s, share }, error, costs_s });
        }
    }
    best
}

/// The threshold, where the latest throttling began at a rate near it. A hypervisor counts now and then, so what was used
/// at full speed until it struck is more than the threshold by as much as was used since it last looked.
fn lowest(history: &History, window_s: f64, at_onsets: &[f64], share: f64) -> f64 {
    match at_onsets.last() {
        Some(used) if at_onsets.len() > 1 && latest_is_near(history, window_s, share) => share.min(*used),
        _ => share,
    }
}

/// Whether the latest throttling began at a rate near a window's threshold.
fn latest_is_near(history: &History, window_s: f64, share: f64) -> bool {
    let before = BEFORE * window_s;
    history.onsets().last().is_some_and(|at| history.used(at - before, *at) / before < NEAR * share)
}

/// Levels of a bucket at the onsets, and the largest level it had while nothing was throttled.
fn levels(history: &History, free: f64) -> (Vec<f64>, f64) {
    let (mut level, mut highest, mut at_onsets) = (0.0f64, 0.0f64, Vec::new());
    let mut onsets = history.onsets().iter().peekable();
    for tick in history.ticks() {
        // The first tick that counts as throttled, see `History::onset`.
        if let Some(onset) = onsets.peek()
            && **onset < tick.end_s
        {
            at_onsets.push(level);
            level = 0.0;
            onsets.next();
        }
        if tick.throttled {
            level = 0.0;
        } else {
            highest = highest.max(level);
            level = (level + tick.used_s() - free * tick.seconds).max(0.0);
        }
    }
    at_onsets.extend(onsets.map(|_| level));
    (at_onsets, highest)
}

/// The best bucket; needs two onsets at rates that differ, or every rate explains the first.
pub fn bucket(history: &History) -> Option<Fit> {
    if history.onsets().len() < 2 {
        return None;
    }
    let pairs = history.onsets().iter().zip(history.ends());
    let lasted: Vec<f64> = pairs.map(|(onset, end)| end - onset).filter(|l| *l > 0.0).collect();
    let penalty_s = evenkeel_base::stats::median(lasted.iter().copied())?;
    let most = history.ticks().iter().map(|t| t.used_s() / t.seconds).fold(0.02, f64::max);
    let coarse = bucket_among(history, &lasted, penalty_s, grid(0.01 * most, most))?;
    let step = 100f64.powf(1.0 / STEPS as f64);
    let near = grid(coarse.threshold.rate() / step, coarse.threshold.rate() * step);
    let fine = bucket_among(history, &lasted, penalty_s, near)?;
    Some(if fine.error < coarse.error { fine } else { coarse })
}

fn bucket_among(
    history: &History,
    lasted: &[f64],
    penalty_s: f64,
    rates: impl Iterator<Item = f64>,
) -> Option<Fit> {
    let mut best: Option<Fit> = None;
    for free in rates {
        let (at_onsets, highest) = levels(history, free);
        let burst_s = at_onsets.iter().sum::<f64>() / at_onsets.len() as f64;
        if burst_s <= 0.0 {
            continue;
        }
        let relative = |x: f64| (x / burst_s - 1.0).powi(2);
        let mut squares: f64 = at_onsets.iter().map(|x| relative(*x)).sum();
        // It was fuller once without being throttled.
        squares += if highest > 1.05 * burst_s { relative(highest) } else { 0.0 };
        squares += lasted.iter().map(|l| (l / penalty_s - 1.0).powi(2)).sum::<f64>();
        let error = (squares / (at_onsets.len() + 1 + lasted.len()) as f64).sqrt();
        if best.is_none_or(|b| error < b.error) {
            best = Some(Fit {
                threshold: Threshold::Bucket { free, burst_s, penalty_s },
                error,
                costs_s: penalty_s,
            });
        }
    }
    best
}

/// Whether the first onsets of a rule are so long ago that they cannot be looked at exactly any more.
pub fn is_old(history: &History, fit: Fit) -> bool {
    let lasts = match fit.threshold {
        Threshold::Window { window_s, .. } => window_s,
        Threshold::Bucket { penalty_s, .. } => penalty_s,
    };
    history.onsets().first().is_some_and(|first| history.tick_s(*first) > BLUR * lasts)
}

/// A rule found before, after a further onset, when the first ones are too long ago to be looked at again: a window's threshold is
/// where the latest onset was, if that was near it.
pub fn renewed(history: &History, fit: Fit) -> Fit {
    let (Threshold::Window { window_s, share }, Some(at)) = (fit.threshold, history.onsets().last()) else {
        return fit;
    };
    let used = history.used(at - window_s, *at) / window_s;
    let near = used > 0.0 && latest_is_near(history, window_s, share);
    if near { Fit { threshold: Threshold::Window { window_s, share: used }, ..fit } } else { fit }
}

/// The rule that explains best what was seen so far. A bucket must be clearly better: it has a number more to fit with.
pub fn best(history: &History) -> Option<Fit> {
    match (window(history), bucket(history)) {
        (Some(window), Some(bucket)) if bucket.error < 0.6 * window.error && window.error > 0.1 => {
            Some(bucket)
        }
        (Some(window), _) => Some(window),
        (None, bucket) => bucket,
    }
}
