//! Whether waits are counted in the kernel, and what that may cost.

use clap::ValueEnum as _;

use super::serve::{ServeTable, of_file};
use super::source::Source;
use crate::cli::{Failure, Global};

/// What `serve` and `run --listen` are asked to count.
#[derive(Debug, Clone, clap::Args)]
pub struct BlameArgs {
    /// Count every wait for a CPU in the kernel, and who ran meanwhile: histograms by container and the matrix of victims
    /// and culprits. `auto`, the default: within --blame-budget; `always`, or --blame alone: without a break;
    /// `off`: not at all.
    #[arg(long, value_name = "WHEN", num_args = 0..=1, default_missing_value = "always")]
    blame: Option<When>,
    /// With `auto`: percent of its time that counting may take of each CPU, 0.01 to 100; 1 unless set. Where it takes more,
    /// a part of the time is counted and stands for the rest.
    #[arg(long, value_name = "PERCENT")]
    blame_budget: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum When {
    Auto,
    Always,
    Off,
}

/// When waits are counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Blaming {
    Off,
    Always,
    /// As long as it takes at most this share of each CPU.
    Within(f64),
}

/// Percent of each CPU, unless it is said.
const BUDGET: f64 = 1.0;

impl BlameArgs {
    /// Whether the command line says anything of it.
    pub fn is_given(&self) -> bool {
        self.blame.is_some() || self.blame_budget.is_some()
    }
}

fn checked(percent: f64) -> Result<f64, String> {
    (0.01..=100.0)
        .contains(&percent)
        .then_some(percent)
        .ok_or_else(|| format!("{percent}: percent of each CPU, from 0.01 to 100"))
}

impl ServeTable {
    /// What the file says of it.
    pub(super) fn blaming(&self, source: &Source) -> anyhow::Result<(Option<When>, Option<f64>)> {
        let when = self.blame.as_ref().map(|text| {
            let why = || source.fault(text, format!("blame = {:?}: auto, always or off", text.get_ref()));
            When::from_str(text.get_ref(), false).map_err(|_| why())
        });
        let budget = self.blame_budget.as_ref().map(|percent| {
            checked(*percent.get_ref()).map_err(|why| source.fault(percent, format!("blame_budget = {why}")))
        });
        Ok((when.transpose()?, budget.transpose()?))
    }
}

/// What the command line says, else the file.
pub fn blaming(global: &Global, args: &BlameArgs) -> Result<Blaming, Failure> {
    let budget = args.blame_budget.map(checked).transpose();
    let budget = budget.map_err(|why| usage!("--blame-budget {why}"))?;
    let (of_file, budget_of_file) = of_file(global, ServeTable::blaming)?.unwrap_or_default();
    let budget = budget.or(budget_of_file).unwrap_or(BUDGET);
    Ok(match args.blame.or(of_file).unwrap_or(When::Auto) {
        When::Off => Blaming::Off,
        When::Always => Blaming::Always,
        When::Auto => Blaming::Within(budget / 100.0),
    })
}

#[cfg(test)]
mod tests {
    use super::super::serve::tests;
    use super::*;

    fn asked(text: &str, options: &[&str]) -> Result<Blaming, String> {
        tests::asked(text, options, blaming)
    }

    #[test]
    fn it_is_on_within_a_budget_unless_that_is_said() {
        assert_eq!(asked("", &[]), Ok(Blaming::Within(0.01)));
        assert_eq!(asked("", &["--blame"]), Ok(Blaming::Always));
        assert_eq!(asked("", &["--blame", "auto"]), Ok(Blaming::Within(0.01)));
        assert_eq!(asked("", &["--blame=off"]), Ok(Blaming::Off));
        let file = "[serve]\nblame = \"off\"\nblame_budget = 2\n";
        assert_eq!(asked(file, &[]), Ok(Blaming::Off));
        assert_eq!(asked(file, &["--blame=auto"]), Ok(Blaming::Within(0.02)));
        assert_eq!(asked(file, &["--blame=auto", "--blame-budget", "0.5"]), Ok(Blaming::Within(0.005)));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_place() {
        for (text, options, why) in [
            ("[serve]\nblame = \"on\"\n", &[][..], "config.toml:2: blame = \"on\": auto, always or off"),
            ("[serve]\nblame_budget = 0\n", &[], "config.toml:2: blame_budget = 0: percent of each CPU"),
            ("", &["--blame-budget", "nan"], "--blame-budget NaN"),
            ("", &["--blame", "never"], "never"),
        ] {
            let error = asked(text, options).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
