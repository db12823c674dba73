//! Descent: from the best point so far downhill, along one parameter at a time or along the gradient.
//!
//! Both are functions of what was measured, nothing else, so that an interrupted search goes on where it was: the next
//! point is the first of a fixed list about the best one that was not measured yet. When all of a list is known and none
//! is better, steps are halved; when they are too small to matter, the search starts again elsewhere.

use rand::Rng;

use super::history::History;
use super::space::{Domain, Point, Space, Value};

/// Steps, in shares of a parameter's range.
const STEPS: [f64; 6] = [0.25, 0.125, 0.0625, 0.03125, 0.015_625, 0.007_812_5];

/// The neighbour a step away along one parameter: at least the next whole number; `None` at the end of the range.
fn neighbour(space: &Space, point: &Point, axis: usize, step: f64) -> Option<Point> {
    let domain = &space.parameters().get(axis)?.domain;
    let value = *point.get(axis)?;
    let there = match (domain, value) {
        (Domain::Integer { low, high, .. }, Value::Integer(v)) => {
            let Value::Integer(far) = domain.at(domain.place(value) + step) else { return None };
            let next = if step > 0.0 { far.max(v.saturating_add(1)) } else { far.min(v.saturating_sub(1)) };
            ((*low..=*high).contains(&next)).then_some(Value::Integer(next))?
        }
        _ => domain.at(domain.place(value) + step),
    };
    let mut other = point.clone();
    *other.get_mut(axis)? = there;
    (other != *point).then_some(other)
}

/// The first other choice of one parameter that was not measured yet.
fn new_choice(space: &Space, history: &History, point: &Point, axis: usize) -> Option<Point> {
    let Domain::Choice { values } = &space.parameters().get(axis)?.domain else { return None };
    let with = |v| {
        let mut other = point.clone();
        if let Some(slot) = other.get_mut(axis) {
            *slot = Value::Choice(v);
        }
        other
    };
    (0..values.len()).map(with).find(|p| p != point && history.arm(p).is_none())
}

/// The best point of the present descent: since the last fresh start, told by the points that no list explains.
fn centre(history: &History) -> Option<&Point> {
    history.best().or_else(|| history.least_bad()).or_else(|| history.arms().first()).map(|arm| &arm.point)
}

fn new_point(history: &History, point: Point) -> Option<Point> {
    history.arm(&point).is_none().then_some(point)
}

/// A point drawn again that was not measured; `None` when a finite space seems exhausted.
pub(super) fn fresh(space: &Space, history: &History, rng: &mut impl Rng) -> Option<Point> {
    let drawn = (0..200).find_map(|_| new_point(history, space.draw(rng)));
    if drawn.is_some() || space.count().is_none_or(|n| n > 100_000) {
        return drawn;
    }
    space.grid(u64::MAX).find(|p| history.arm(p).is_none())
}

/// Along one parameter at a time (compass search).
pub(super) fn coordinate(space: &Space, history: &History, rng: &mut impl Rng) -> Option<Point> {
    let Some(centre) = centre(history) else { return fresh(space, history, rng) };
    for step in STEPS {
        for axis in 0..space.dim() {
            if space.categorical().get(axis) == Some(&true) {
                if let Some(p) = new_choice(space, history, centre, axis) {
                    return Some(p);
                }
                continue;
            }
            for way in [step, -step] {
                if let Some(p) = neighbour(space, centre, axis, way).and_then(|p| new_point(history, p)) {
                    return Some(p);
                }
            }
        }
    }
    fresh(space, history, rng)
}

/// Along the gradient, taken from neighbours; choices are tried one after the other.
pub(super) fn gradient(space: &Space, history: &History, rng: &mut impl Rng) -> Option<Point> {
    let Some(centre) = centre(history) else { return fresh(space, history, rng) };
    let here = history.arm(centre).and_then(|arm| arm.mean());
    let place = space.place(centre);
    for step in STEPS {
        let probe = step / 2.0;
        let mut slope = vec![0.0; space.dim()];
        for (axis, slope) in slope.iter_mut().enumerate() {
            if space.categorical().get(axis) == Some(&true) {
                if let Some(p) = new_choice(space, history, centre, axis) {
                    return Some(p);
                }
                continue;
            }
            // One neighbour tells the slope; at the end of the range the one on the other side.
            let beside =
                neighbour(space, centre, axis, probe).or_else(|| neighbour(space, centre, axis, -probe));
            let Some(beside) = beside else { continue };
            let Some(arm) = history.arm(&beside) else { return Some(beside) };
            let gap = space.place(&beside).get(axis).copied().unwrap_or(0.0)
                - place.get(axis).copied().unwrap_or(0.0);
            if let (Some(there), Some(here)) = (arm.mean(), here)
                && gap.abs() > 1e-12
            {
                *slope = (there - here) / gap;
            }
        }
        let length = slope.iter().map(|s| s * s).sum::<f64>().sqrt();
        if length > 0.0 {
            for far in [2.0 * step, step, step / 2.0] {
                let there: Vec<f64> = place.iter().zip(&slope).map(|(x, s)| x - far * s / length).collect();
                let mut point = space.at(&there);
                for (axis, value) in point.iter_mut().enumerate() {
                    if space.categorical().get(axis) == Some(&true) {
                        *value = centre.get(axis).copied().unwrap_or(*value);
                    }
                }
                if let Some(p) = new_point(history, point) {
                    return Some(p);
                }
            }
        }
    }
    fresh(space, history, rng)
}
