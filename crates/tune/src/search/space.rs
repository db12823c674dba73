//! What may be varied: parameters with their ranges, points in the space they span, and the unit cube that methods
//! work in.

use rand::Rng;

/// What values a parameter may have.
#[derive(Debug, Clone, PartialEq)]
pub enum Domain {
    /// Whole numbers from `low` to `high`, both included.
    Integer {
        low: i64,
        high: i64,
        /// Steps are ratios: 1, 2, 4 .. are as far apart as 1, 2, 3 otherwise.
        log: bool,
    },
    /// Numbers from `low` to `high`.
    Real { low: f64, high: f64, log: bool },
    /// One of several, in no order.
    Choice {
        /// What may be chosen.
        values: Vec<String>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    pub name: String,
    pub domain: Domain,
}

/// A value of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    Integer(i64),
    Real(f64),
    /// Of [`Domain::Choice`]: index of what is chosen.
    Choice(usize),
}

/// One value for each parameter, in their order.
pub type Point = Vec<Value>;

/// Why parameters span no space.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    #[error("there is no parameter to vary")]
    Empty,
    #[error("parameter {0:?} is there twice")]
    Twice(String),
    #[error("parameter {name:?}: {what}")]
    Range { name: String, what: String },
}

/// Most whole numbers a range may hold: beyond it a real parameter is meant.
const MAX_STEPS: i64 = 1 << 40;

impl Domain {
    /// Values it has; `None` for infinitely many.
    pub fn count(&self) -> Option<u64> {
        match self {
            Self::Integer { low, high, .. } => Some(high.abs_diff(*low) + 1),
            Self::Real { low, high, .. } => (low == high).then_some(1),
            Self::Choice { values } => Some(values.len() as u64),
        }
    }

    /// Why it cannot be searched.
    fn fault(&self) -> Option<String> {
        match self {
            Self::Integer { low, high, .. } if low > high => {
                Some(format!("its range is reversed: low {low} is above high {high}"))
            }
            Self::Integer { low, log: true, .. } if *low < 1 => {
                Some(format!("a log scale needs a low of at least 1, not {low}"))
            }
            Self::Integer { low, high, .. } if high.checked_sub(*low).is_none_or(|n| n > MAX_STEPS) => {
                Some("its range is too large for whole numbers; make it kind = \"real\"".into())
            }
            Self::Real { low, high, .. } if !low.is_finite() || !high.is_finite() => {
                Some("its range is not finite".into())
            }
            Self::Real { low, high, .. } if low > high => {
                Some(format!("its range is reversed: low {low} is above high {high}"))
            }
            Self::Real { low, log: true, .. } if *low <= 0.0 => {
                Some(format!("a log scale needs a low above 0, not {low}"))
            }
            Self::Choice { values } if values.is_empty() => Some("there is nothing to choose from".into()),
            Self::Choice { values } => {
                let twice = values.iter().enumerate().find(|(i, v)| values[..*i].contains(v));
                twice.map(|(_, v)| format!("{v:?} is there twice"))
            }
            _ => None,
        }
    }

    /// The value at a place from 0 to 1; every whole number and every choice has the same share of the line.
    pub fn at(&self, unit: f64) -> Value {
        let u = if unit.is_finite() { unit.clamp(0.0, 1.0) } else { 0.5 };
        match self {
            Self::Real { low, high, log: false } => Value::Real((low + u * (high - low)).clamp(*low, *high)),
            Self::Real { low, high, log: true } => {
                Value::Real((low.ln() + u * (high.ln() - low.ln())).exp().clamp(*low, *high))
            }
            Self::Integer { low, high, log: false } => {
                let steps = high.abs_diff(*low) as f64 + 1.0;
                Value::Integer((low + (u * steps).floor() as i64).clamp(*low, *high))
            }
            Self::Integer { low, high, log: true } => {
                let (from, to) = ((*low as f64 - 0.5).max(0.5).ln(), (*high as f64 + 0.5).ln());
                Value::Integer(((from + u * (to - from)).exp().round() as i64).clamp(*low, *high))
            }
            Self::Choice { values } => {
                Value::Choice(((u * values.len() as f64) as usize).min(values.len().saturating_sub(1)))
            }
        }
    }

    /// The place of a value, the middle of its share; 0.5 for a value of another kind.
    pub fn place(&self, value: Value) -> f64 {
        let u = match (self, value) {
            (Self::Real { low, high, log: false }, Value::Real(v)) => (v - low) / (high - low),
            (Self::Real { low, high, log: true }, Value::Real(v)) => {
                (v.ln() - low.ln()) / (high.ln() - low.ln())
            }
            (Self::Integer { low, high, log: false }, Value::Integer(v)) => {
                (v.saturating_sub(*low) as f64 + 0.5) / (high.abs_diff(*low) as f64 + 1.0)
            }
            (Self::Integer { low, high, log: true }, Value::Integer(v)) => {
                let (from, to) = ((*low as f64 - 0.5).max(0.5).ln(), (*high as f64 + 0.5).ln());
                ((v as f64).ln() - from) / (to - from)
            }
            (Self::Choice { values }, Value::Choice(v)) => (v as f64 + 0.5) / values.len().max(1) as f64,
            _ => 0.5,
        };
        if u.is_finite() { u.clamp(0.0, 1.0) } else { 0.5 }
    }

    /// Whether a value belongs to it.
    pub fn holds(&self, value: Value) -> bool {
        match (self, value) {
            (Self::Integer { low, high, .. }, Value::Integer(v)) => (*low..=*high).contains(&v),
            (Self::Real { low, high, .. }, Value::Real(v)) => (*low..=*high).contains(&v),
            (Self::Choice { values }, Value::Choice(v)) => v < values.len(),
            _ => false,
        }
    }

    /// Evenly spread values, at most `most` of them, ends included.
    pub fn levels(&self, most: u64) -> Vec<Value> {
        let most = most.max(1);
        let mut out: Vec<Value> = match self.count() {
            Some(count) if count <= most || matches!(self, Self::Choice { .. }) => {
                (0..count).map(|i| self.at((i as f64 + 0.5) / count as f64)).collect()
            }
            _ if most == 1 => vec![self.at(0.5)],
            _ => (0..most).map(|i| self.at(i as f64 / (most - 1) as f64)).collect(),
        };
        // On a log scale several places may round to the same whole number, and others to none.
        if let (Self::Integer { low, high, .. }, Some(count)) = (self, self.count())
            && count <= most
        {
            out = (*low..=*high).map(Value::Integer).collect();
        }
        out.dedup();
        out
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Space {
    parameters: Vec<Parameter>,
}

impl Space {
    /// Checks that the parameters can be searched.
    pub fn new(parameters: Vec<Parameter>) -> Result<Self, SpaceError> {
        if parameters.is_empty() {
            return Err(SpaceError::Empty);
        }
        for (index, parameter) in parameters.iter().enumerate() {
            if parameters[..index].iter().any(|p| p.name == parameter.name) {
                return Err(SpaceError::Twice(parameter.name.clone()));
            }
            if let Some(what) = parameter.domain.fault() {
                return Err(SpaceError::Range { name: parameter.name.clone(), what });
            }
        }
        Ok(Self { parameters })
    }

    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    pub fn dim(&self) -> usize {
        self.parameters.len()
    }

    /// Which are choices, which have no order.
    pub fn categorical(&self) -> Vec<bool> {
        self.parameters.iter().map(|p| matches!(p.domain, Domain::Choice { .. })).collect()
    }

    /// Points it has; `None` when infinitely many (or beyond 2^63).
    pub fn count(&self) -> Option<u64> {
        self.parameters.iter().try_fold(1u64, |n, p| {
            let all = n.checked_mul(p.domain.count()?)?;
            (all < 1 << 63).then_some(all)
        })
    }

    /// Whether a point belongs to it.
    pub fn holds(&self, point: &Point) -> bool {
        point.len() == self.dim() && self.parameters.iter().zip(point).all(|(p, v)| p.domain.holds(*v))
    }

    /// The point at a place of the unit cube.
    pub fn at(&self, unit: &[f64]) -> Point {
        let place = |i: usize| unit.get(i).copied().unwrap_or(0.5);
        self.parameters.iter().enumerate().map(|(i, p)| p.domain.at(place(i))).collect()
    }

    /// The place of a point in the unit cube.
    pub fn place(&self, point: &Point) -> Vec<f64> {
        self.parameters.iter().zip(point).map(|(p, v)| p.domain.place(*v)).collect()
    }

    /// A point drawn evenly.
    pub fn draw(&self, rng: &mut impl Rng) -> Point {
        let unit: Vec<f64> = (0..self.dim()).map(|_| rng.random()).collect();
        self.at(&unit)
    }

    /// All points of a grid with at most `levels` values of a number, the last parameter fastest.
    pub fn grid(&self, levels: u64) -> Grid {
        let axes: Vec<Vec<Value>> = self.parameters.iter().map(|p| p.domain.levels(levels)).collect();
        Grid { index: Some(vec![0; axes.len()]), axes }
    }
}

/// The points of a grid, one after the other.
#[derive(Debug, Clone)]
pub struct Grid {
    axes: Vec<Vec<Value>>,
    index: Option<Vec<usize>>,
}

impl Grid {
    /// How many points it has in all.
    pub fn size(&self) -> u64 {
        self.axes.iter().fold(1u64, |n, axis| n.saturating_mul(axis.len() as u64))
    }
}

impl Iterator for Grid {
    type Item = Point;

    fn next(&mut self) -> Option<Point> {
        let index = self.index.as_mut()?;
        let point = index.iter().zip(&self.axes).map(|(i, axis)| axis.get(*i).copied()).collect();
        let mut axis = index.len();
        loop {
            if axis == 0 {
                self.index = None;
                break;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < self.axes[axis].len() {
                break;
            }
            index[axis] = 0;
        }
        point
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn domain() -> impl Strategy<Value = Domain> {
        prop_oneof![
            (-1000i64..1000, 0i64..1000).prop_map(|(low, n)| Domain::Integer {
                low,
                high: low + n,
                log: false
            }),
            (1i64..1000, 0i64..100_000).prop_map(|(low, n)| Domain::Integer {
                low,
                high: low + n,
                log: true
            }),
            (-1e6f64..1e6, 0f64..1e6).prop_map(|(low, n)| Domain::Real { low, high: low + n, log: false }),
            (1e-6f64..1e3, 0f64..1e6).prop_map(|(low, n)| Domain::Real { low, high: low + n, log: true }),
            (1usize..9).prop_map(|n| Domain::Choice { values: (0..n).map(|i| i.to_string()).collect() }),
        ]
    }

    proptest! {
        #[test]
        fn every_place_is_a_value_and_every_value_has_its_place(d in domain(), u in -0.5f64..1.5) {
            prop_assert!(d.fault().is_none());
            let value = d.at(u);
            prop_assert!(d.holds(value), "{d:?} {u} {value:?}");
            let back = d.at(d.place(value));
            match (value, back) {
                (Value::Real(a), Value::Real(b)) => prop_assert!((a - b).abs() <= 1e-9 * a.abs().max(1.0)),
                (a, b) => prop_assert_eq!(a, b),
            }
        }

        #[test]
        fn levels_are_values_without_repetition(d in domain(), most in 1u64..40) {
            let levels = d.levels(most);
            prop_assert!(!levels.is_empty());
            prop_assert!(levels.iter().all(|v| d.holds(*v)));
            prop_assert!(levels.iter().enumerate().all(|(i, v)| !levels[..i].contains(v)));
            if let Some(count) = d.count() && count <= most {
                prop_assert_eq!(levels.len() as u64, count);
            }
        }
    }

    #[test]
    fn what_cannot_be_searched_is_refused_by_name() {
        let refused = |domain| {
            let p = Parameter { name: "x".into(), domain };
            Space::new(vec![p]).unwrap_err().to_string()
        };
        assert!(refused(Domain::Integer { low: 4, high: 1, log: false }).contains("reversed"));
        assert!(refused(Domain::Real { low: 4.0, high: 1.0, log: false }).contains("reversed"));
        assert!(refused(Domain::Real { low: 0.0, high: 1.0, log: true }).contains("log scale"));
        assert!(refused(Domain::Real { low: f64::NAN, high: 1.0, log: false }).contains("finite"));
        assert!(refused(Domain::Choice { values: vec![] }).contains("nothing"));
        assert!(refused(Domain::Integer { low: i64::MIN, high: i64::MAX, log: false }).contains("too large"));
        assert_eq!(Space::new(vec![]).unwrap_err(), SpaceError::Empty);
    }

    #[test]
    fn a_grid_has_every_combination_once() {
        let p = |name: &str, domain| Parameter { name: name.into(), domain };
        let space = Space::new(vec![
            p("a", Domain::Integer { low: 1, high: 3, log: false }),
            p("b", Domain::Choice { values: vec!["x".into(), "y".into()] }),
        ])
        .unwrap();
        let points: Vec<Point> = space.grid(10).collect();
        assert_eq!((points.len(), space.count(), space.grid(10).size()), (6, Some(6), 6));
        assert_eq!(points[1], vec![Value::Integer(1), Value::Choice(1)]);
        assert!(points.iter().enumerate().all(|(i, p)| !points[..i].contains(p)));
    }
}
