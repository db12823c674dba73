//! A job's CPU time and share, from the account of a run: what `evenkeel exec --account FILE` wrote.

use std::path::Path;

use anyhow::{Context, bail};
use evenkeel_model::price::MIN_BUSY;
use serde::Deserialize;

/// Waiting and steal up to this share of a run do not blur its own share of the CPU.
const HELD_BACK: f64 = 0.05;
/// Longest time in an account, seconds: a thousand CPUs for three hundred years.
const MOST_S: f64 = 1e13;

/// What is used of an account.
#[derive(Debug, Deserialize)]
pub struct Account {
    schema: String,
    real_s: f64,
    user_s: f64,
    sys_s: f64,
    /// Throttled time included.
    waited_s: Option<f64>,
    stolen_s: Option<f64>,
}

impl Account {
    /// Reads an account.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = evenkeel_linux::input::read_text(path).with_context(|| format!("cannot read {shown}"))?;
        Self::parse(&text).with_context(|| shown.to_string())
    }

    /// Reads the text of an account.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let account: Self =
            serde_json::from_str(text).context("not an account of `evenkeel exec --account FILE`")?;
        if account.schema != "evenkeel.exec/v1" {
            bail!("this is {}, not an account of `evenkeel exec --account FILE`", account.schema);
        }
        let times = [
            Some(account.real_s),
            Some(account.user_s),
            Some(account.sys_s),
            account.waited_s,
            account.stolen_s,
        ];
        if let Some(odd) = times.into_iter().flatten().find(|time| !(0.0..=MOST_S).contains(time)) {
            bail!("a time of {odd} s in it makes no sense: 0 to {MOST_S} s do");
        }
        Ok(account)
    }

    /// CPU time, minutes.
    pub fn cpu_minutes(&self) -> f64 {
        (self.user_s + self.sys_s) / 60.0
    }

    /// Share of the time in which each of so many threads wanted a CPU.
    ///
    /// # Errors
    /// The run was held back, or may have been, so that its share is not its own.
    pub fn busy(&self, threads: u32) -> anyhow::Result<f64> {
        let Some(waited_s) = self.waited_s else {
            bail!(
                "how long the run measured waited for a CPU is not known, so the share of the time it wants one is not, either: \
                 give --busy"
            );
        };
        let held_s = waited_s + self.stolen_s.unwrap_or(0.0);
        let thread_s = self.real_s * f64::from(threads);
        if held_s > HELD_BACK * thread_s {
            bail!(
                "the run measured waited {held_s:.1} s for a CPU (throttled or stolen time included), so the share of the \
                 time it wants one is not known: give --busy, or measure it where nothing holds it back"
            );
        }
        Ok(((self.user_s + self.sys_s) / thread_s.max(1e-9)).clamp(MIN_BUSY, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(waited_s: Option<f64>) -> Account {
        let schema = "evenkeel.exec/v1".to_owned();
        Account { schema, real_s: 100.0, user_s: 60.0, sys_s: 20.0, waited_s, stolen_s: None }
    }

    #[test]
    fn times_that_cannot_be_are_refused() {
        let text = r#"{"schema":"evenkeel.exec/v1","real_s":100.0,"user_s":60.0,"sys_s":20.0}"#;
        assert!(Account::parse(text).is_ok());
        for (from, to) in [("60.0", "-60.0"), ("60.0", "1e300"), ("20.0", "-1"), ("100.0", "-100.0")] {
            let error = Account::parse(&text.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains("makes no sense"), "{error}");
        }
        assert!(Account::parse("{}").is_err() && Account::parse(&text.replace("exec/v1", "ps/v1")).is_err());
    }

    #[test]
    fn the_share_is_known_only_where_nothing_held_it_back() {
        assert!((account(None).cpu_minutes() - 80.0 / 60.0).abs() < 1e-9);
        assert!((account(Some(4.0)).busy(1).unwrap() - 0.8).abs() < 1e-9);
        assert!((account(Some(4.0)).busy(2).unwrap() - 0.4).abs() < 1e-9);
        for held in [Some(6.0), None] {
            assert!(account(held).busy(1).unwrap_err().to_string().contains("--busy"), "{held:?}");
        }
    }
}
