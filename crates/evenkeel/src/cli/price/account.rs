//! A job's CPU time and share, from the account of a run: what `evenkeel exec --account FILE` wrote.

use std::path::Path;

use anyhow::{Context, bail};
use evenkeel_model::price::MIN_BUSY;
use serde::Deserialize;

/// Waiting and steal up to this share of a run do not blur its own share of the CPU.
const HELD_BACK: f64 = 0.05;
/// A run that used so much more than its threads can was one of more threads: clocks and ticks differ by less.
const MORE: f64 = 1.05;
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
    /// `sampled` misses waits of short-lived tasks.
    waited_source: Option<String>,
    /// Of this much is known, however the waits were learnt.
    throttled_s: Option<f64>,
    stolen_s: Option<f64>,
}

impl Account {
    /// Reads an account.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = evenkeel_linux::input::read_text(path).with_context(|| format!("cannot read {shown}"))?;
        Self::parse(&text).with_context(|| shown.to_string())
    }

    /// Reads the text of an account.
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
            account.throttled_s,
            account.stolen_s,
        ];
        if let Some(odd) = times.into_iter().flatten().find(|time| !(0.0..=MOST_S).contains(time)) {
            bail!("a time of {odd} s in it makes no sense: 0 to {MOST_S} s do");
        }
        Ok(account)
    }

    /// CPU time of a job of so many threads, minutes.
    pub fn cpu_minutes(&self, threads: u32) -> anyhow::Result<f64> {
        let cpu_s = self.user_s + self.sys_s;
        if cpu_s > MORE * self.real_s * f64::from(threads) {
            bail!(
                "the run measured used {:.1} CPUs on average: give --threads, the number that it keeps busy at the same time, \
                 instead of {threads}",
                cpu_s / self.real_s.max(1e-9)
            );
        }
        Ok(cpu_s / 60.0)
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
        let held_s = waited_s.max(self.throttled_s.unwrap_or(0.0)) + self.stolen_s.unwrap_or(0.0);
        let thread_s = self.real_s * f64::from(threads);
        if held_s > HELD_BACK * thread_s {
            bail!(
                "the run measured waited {held_s:.1} s for a CPU (throttled or stolen time included), so the share of the \
                 time it wants one is not known: give --busy, or measure it where nothing holds it back"
            );
        }
        Ok(((self.user_s + self.sys_s) / thread_s.max(1e-9)).clamp(MIN_BUSY, 1.0))
    }

    /// Whether it may have been held back more than its account knows.
    pub fn may_have_waited_more(&self) -> bool {
        self.waited_source.as_deref() == Some("sampled")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(waited_s: Option<f64>) -> Account {
        let schema = "evenkeel.exec/v1".to_owned();
        let (waited_source, throttled_s, stolen_s) = (None, None, None);
        Account {
            schema,
            real_s: 100.0,
            user_s: 60.0,
            sys_s: 20.0,
            waited_s,
            waited_source,
            throttled_s,
            stolen_s,
        }
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
    fn a_run_of_more_threads_than_are_named_is_not_taken_for_one_of_fewer() {
        let four = Account { user_s: 310.0, sys_s: 40.0, ..account(Some(0.0)) };
        let error = four.cpu_minutes(1).unwrap_err().to_string();
        assert!(error.contains("used 3.5 CPUs on average") && error.contains("--threads"), "{error}");
        assert!(four.cpu_minutes(4).is_ok() && (four.busy(4).unwrap() - 0.875).abs() < 1e-9);
        let rounded = Account { user_s: 81.0, ..account(Some(0.0)) };
        assert!(rounded.cpu_minutes(1).is_ok() && rounded.busy(1).unwrap() == 1.0);
    }

    #[test]
    fn the_share_is_known_only_where_nothing_held_it_back() {
        assert!((account(None).cpu_minutes(1).unwrap() - 80.0 / 60.0).abs() < 1e-9);
        assert!((account(Some(4.0)).busy(1).unwrap() - 0.8).abs() < 1e-9);
        assert!((account(Some(4.0)).busy(2).unwrap() - 0.4).abs() < 1e-9);
        for held in [Some(6.0), None] {
            assert!(account(held).busy(1).unwrap_err().to_string().contains("--busy"), "{held:?}");
        }
        // Waits that were sampled miss what a quota took from short-lived tasks.
        let throttled = Account { throttled_s: Some(30.0), ..account(Some(0.5)) };
        assert!(throttled.busy(1).unwrap_err().to_string().contains("waited 30.0 s"));
    }
}
