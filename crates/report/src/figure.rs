//! Figures with their intervals: three columns of documents, one of a page.

use evenkeel_base::run::Estimate;

use crate::Field;

/// One of a row's figures.
#[derive(Debug)]
pub struct Figure<R> {
    /// Names in documents: of the value and of the ends of its interval.
    pub names: [&'static str; 3],
    pub heading: &'static str,
    /// Digits after the point.
    pub decimals: usize,
    /// Where a row has it.
    pub of: fn(&R) -> Option<Estimate>,
    /// Whether the table for people has it.
    pub shown: bool,
}

/// The figure of a row's field of that name; shown to people unless the last argument is `false`.
#[macro_export]
macro_rules! figure {
    ($field:ident, $heading:literal, $decimals:literal) => {
        $crate::figure!($field, $heading, $decimals, true)
    };
    ($field:ident, $heading:literal, $decimals:literal, $shown:literal) => {
        $crate::figure::Figure {
            names: [
                stringify!($field),
                concat!(stringify!($field), "_low"),
                concat!(stringify!($field), "_high"),
            ],
            heading: $heading,
            decimals: $decimals,
            of: |row| row.$field,
            shown: $shown,
        }
    };
}

impl<R: 'static> Figure<R> {
    /// Its columns in documents: the value and the ends of its interval.
    pub fn fields(&self) -> [Field<R>; 3] {
        let Self { names: [value, low, high], heading, decimals, of, .. } = *self;
        let number = |name, end: fn(Estimate) -> f64| {
            Field::number(name, heading, decimals, move |row: &R| of(row).map(end))
        };
        [number(value, |e| e.value), number(low, |e| e.low), number(high, |e| e.high)]
    }

    /// What a page calls it.
    pub fn title(&self) -> String {
        let name = self.names[0].replace("_per_s", "/s").replace("_pct", " %");
        name.replace("_usec", ", us").replace('_', " ")
    }
}
