//! The file of prices.

use std::collections::BTreeSet;
use std::path::Path;

use evenkeel_base::FileError;
use serde::Deserialize;
use toml::Spanned;

use crate::families::{self, Family};

/// CPUs of a type at most.
const MAX_CPUS: u32 = 4096;

/// Prices of one currency.
#[derive(Debug)]
pub struct Prices {
    pub currency: String,
    pub prices: Vec<Price>,
}

/// What a type costs.
#[derive(Debug)]
pub struct Price {
    pub name: String,
    /// Money an hour.
    pub hour: f64,
    /// Money for a CPU hour beyond the credits, in "unlimited" mode.
    pub surplus_cpu_hour: Option<f64>,
    pub kind: Kind,
}

/// What is known of a type.
#[derive(Debug)]
pub enum Kind {
    Known(Box<Family>),
    /// Only what the file says: taken to have no rule.
    Plain {
        cpus: u32,
        memory_gib: Option<f64>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    currency: Spanned<String>,
    #[serde(default)]
    price: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Spanned<String>,
    hour: Spanned<f64>,
    surplus_cpu_hour: Option<Spanned<f64>>,
    cpus: Option<Spanned<u32>>,
    memory_gib: Option<Spanned<f64>>,
}

/// Reads the text of a file of prices; the path is for messages.
pub fn parse(path: &Path, text: &str) -> Result<Prices, FileError> {
    let file: File = toml::from_str(text).map_err(|error| FileError::from_toml(path, text, &error))?;
    let fault = |span: std::ops::Range<usize>, what: String| FileError::at(path, text, span.start, what);
    let currency = file.currency.get_ref().trim().to_owned();
    if currency.is_empty() || currency.chars().count() > 8 || currency.contains(char::is_control) {
        return Err(fault(file.currency.span(), "currency is a short name such as \"USD\"".into()));
    }
    if file.price.is_empty() {
        return Err(fault(0..0, "there is no [[price]]: give at least one".into()));
    }
    let mut seen = BTreeSet::new();
    let mut prices = Vec::new();
    for entry in file.price {
        let span = entry.name.span();
        let name = entry.name.get_ref().trim().to_owned();
        if name.is_empty() {
            return Err(fault(span, "name is empty: name an instance type such as \"t3.micro\"".into()));
        }
        if !seen.insert(name.to_lowercase()) {
            return Err(fault(span, format!("{name:?} has a price already: give each type one")));
        }
        for (what, value) in
            [("hour", Some(&entry.hour)), ("surplus_cpu_hour", entry.surplus_cpu_hour.as_ref())]
        {
            let Some(value) = value else { continue };
            if !(0.0..=1e9).contains(value.get_ref()) {
                return Err(fault(
                    value.span(),
                    format!("{what} of {name:?} is {}: a price is 0 or more", value.get_ref()),
                ));
            }
        }
        let surplus_cpu_hour = entry.surplus_cpu_hour.as_ref().map(|price| *price.get_ref());
        let kind = kind(&name, &entry).map_err(|(span, what)| fault(span, what))?;
        if let (Some(price), Kind::Plain { .. }) = (&entry.surplus_cpu_hour, &kind) {
            let what = format!("surplus_cpu_hour is for types with credits; no rule is known for {name:?}");
            return Err(fault(price.span(), what));
        }
        if let (Some(price), Kind::Known(family)) = (&entry.surplus_cpu_hour, &kind)
            && !family.unlimited
        {
            let what = format!("surplus_cpu_hour: {name:?} has no \"unlimited\" mode, leave it out");
            return Err(fault(price.span(), what));
        }
        prices.push(Price { name, hour: *entry.hour.get_ref(), surplus_cpu_hour, kind });
    }
    Ok(Prices { currency, prices })
}

type Fault = (std::ops::Range<usize>, String);

/// What is known of a type, and whether the file agrees.
fn kind(name: &str, entry: &Entry) -> Result<Kind, Fault> {
    if let Some(cpus) = &entry.cpus
        && !(1..=MAX_CPUS).contains(cpus.get_ref())
    {
        return Err((cpus.span(), format!("cpus of {name:?} is {}: 1 to {MAX_CPUS}", cpus.get_ref())));
    }
    if let Some(gib) = &entry.memory_gib
        && !(0.0..=1e6).contains(gib.get_ref())
    {
        return Err((gib.span(), format!("memory_gib of {name:?} is {}: 0 to 1000000", gib.get_ref())));
    }
    let memory_gib = entry.memory_gib.as_ref().map(|gib| *gib.get_ref());
    match (families::of(name), &entry.cpus) {
        (Some(family), Some(cpus)) if *cpus.get_ref() != family.cpus => Err((
            cpus.span(),
            format!("{name:?} is known to have {} CPUs, not {}: leave cpus out", family.cpus, cpus.get_ref()),
        )),
        (Some(mut family), _) => {
            family.memory_gib = memory_gib.or(family.memory_gib);
            Ok(Kind::Known(Box::new(family)))
        }
        (None, Some(cpus)) => Ok(Kind::Plain { cpus: *cpus.get_ref(), memory_gib }),
        (None, None) => Err((
            entry.name.span(),
            format!(
                "no rule is known for {name:?}: give its cpus to have it reckoned without one, or see \
                 `evenkeel price --cpu-minutes 1` for the known types"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "currency = 'USD'\n[[price]]\nname = 't3.micro'\nhour = 0.0104\nsurplus_cpu_hour = 0.05\n\
        [[price]]\nname = 'm5.large'\nhour = 0.096\ncpus = 2\nmemory_gib = 8\n";

    #[test]
    fn known_types_bring_their_rule_and_others_their_cpus() {
        let prices = parse(Path::new("p.toml"), GOOD).unwrap();
        assert_eq!((prices.currency.as_str(), prices.prices.len()), ("USD", 2));
        assert!(matches!(&prices.prices[0].kind, Kind::Known(family) if family.cpus == 2));
        assert!(matches!(prices.prices[1].kind, Kind::Plain { cpus: 2, memory_gib: Some(8.0) }));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (from, to, line, reason) in [
            ("currency = 'USD'", "curency = 'USD'", 1, "did you mean `currency`"),
            ("currency = 'USD'", "currency = ' '", 1, "short name"),
            ("currency = 'USD'", "", 1, "currency"),
            ("hour = 0.0104", "hour = -1", 4, "0 or more"),
            ("hour = 0.0104", "hour = nan", 4, "0 or more"),
            ("hour = 0.0104", "hour = inf", 4, "0 or more"),
            ("hour = 0.0104", "hour = 'x'", 4, "expected f64"),
            ("hour = 0.0104", "hours = 1", 4, "did you mean `hour`"),
            ("hour = 0.0104", "", 2, "hour"),
            ("surplus_cpu_hour = 0.05", "surplus_cpu_hour = -0.05", 5, "0 or more"),
            ("surplus_cpu_hour = 0.05", "cpus = 3", 5, "known to have 2 CPUs"),
            ("name = 't3.micro'", "name = 'e2-micro'", 5, "no \"unlimited\" mode"),
            ("name = 't3.micro'", "name = ''", 3, "empty"),
            ("name = 'm5.large'", "name = 'T3.Micro'", 7, "price already"),
            ("cpus = 2", "", 7, "no rule is known"),
            ("cpus = 2", "cpus = 0", 9, "1 to 4096"),
            ("cpus = 2", "cpus = -1", 9, "u32"),
            ("memory_gib = 8", "memory_gib = -8", 10, "1000000"),
            ("memory_gib = 8", "surplus_cpu_hour = 1", 10, "types with credits"),
            ("[[price]]\nname = 'm5", "[price]\nname = 'm5", 6, ""),
        ] {
            let text = GOOD.replacen(from, to, 1);
            let error = parse(Path::new("p.toml"), &text).unwrap_err();
            assert!(error.what.contains(reason), "{text}\n{error}");
            assert_eq!(error.line, line, "{text}\n{error}");
            assert!(error.to_string().starts_with("p.toml:"), "{error}");
        }
        let error = parse(Path::new("p.toml"), "currency = 'USD'\nprice = []\n").unwrap_err();
        assert!(error.what.contains("at least one"), "{error}");
    }
}
