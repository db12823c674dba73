//! What a tenant answered, read back when its cell is over.

use std::path::Path;

use evenkeel_experiment::record::{Account, Release, RunRecord};

use super::order::Answer;

/// All answers of a tenant.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Answers {
    pub release: Release,
    pub runs: Vec<RunRecord>,
    /// It did all its runs.
    pub total: Option<Account>,
    pub notes: Vec<String>,
    pub failed: Option<String>,
}

impl Answers {
    /// Reads the file; one that is missing has no answers, a last line that was not finished is left out.
    pub fn read(path: &Path) -> Self {
        Self::parse(&std::fs::read_to_string(path).unwrap_or_default())
    }

    /// The same of a file's text.
    pub fn parse(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines() {
            match serde_json::from_str(line) {
                Ok(Answer::Released { woken_late_ns, first_late_ns }) => {
                    let usec = |ns: u64| ns as f64 / 1e3;
                    all.release = Release {
                        woken_late_usec: woken_late_ns.map(usec),
                        first_instruction_late_usec: Some(usec(first_late_ns)),
                    };
                }
                Ok(Answer::Run(run)) => all.runs.push(run),
                Ok(Answer::Total(total)) => all.total = Some(total),
                Ok(Answer::Note(note)) => all.notes.push(note),
                Ok(Answer::Failed(what)) => all.failed = Some(what),
                Err(_) => {}
            }
        }
        all
    }

    /// The account of the whole; of the runs that were finished where the tenant did not live to give it.
    pub fn account(&self) -> Account {
        if let Some(total) = self.total {
            return total;
        }
        if self.runs.is_empty() {
            // It used something, and nobody knows how much.
            return Account::default();
        }
        let sum =
            |f: fn(&Account) -> Option<f64>| self.runs.iter().map(|r| f(&r.account)).sum::<Option<f64>>();
        let count = |f: fn(&Account) -> Option<u64>| {
            self.runs.iter().try_fold(0_u64, |sum, run| sum.checked_add(f(&run.account)?))
        };
        Account {
            real_s: self.runs.last().map_or(0.0, |r| r.end_s) - self.runs.first().map_or(0.0, |r| r.start_s),
            user_s: sum(|a| a.user_s),
            sys_s: sum(|a| a.sys_s),
            waited_s: sum(|a| a.waited_s),
            throttled_s: sum(|a| a.throttled_s),
            throttled_count: count(|a| a.throttled_count),
            stolen_s: None,
            voluntary: count(|a| a.voluntary),
            involuntary: count(|a| a.involuntary),
            migrations: count(|a| a.migrations),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_one_who_died_are_kept_as_far_as_they_go() {
        let run = |number| {
            let account = Account { user_s: Some(0.5), sys_s: Some(0.1), ..Account::default() };
            let (start_s, end_s) = (f64::from(number), f64::from(number) + 1.0);
            serde_json::to_string(&Answer::Run(RunRecord {
                number,
                start_s,
                end_s,
                account,
                ..RunRecord::default()
            }))
            .unwrap()
        };
        let released =
            serde_json::to_string(&Answer::Released { woken_late_ns: Some(1500), first_late_ns: 2500 })
                .unwrap();
        let text = format!("{released}\n{}\n{}\n{}", run(0), run(1), &run(2)[..20]);
        let answers = Answers::parse(&text);
        assert_eq!(answers.runs.len(), 2);
        assert_eq!(answers.release.woken_late_usec, Some(1.5));
        let endless = |number| RunRecord {
            number,
            account: Account { voluntary: Some(u64::MAX), ..Account::default() },
            ..RunRecord::default()
        };
        let two = Answers { runs: vec![endless(0), endless(1)], ..Answers::default() };
        assert_eq!(two.account().voluntary, None);
        let account = answers.account();
        assert_eq!((account.real_s, account.user_s, account.waited_s), (2.0, Some(1.0), None));
        assert_eq!(Answers::parse(""), Answers::default());
        assert_eq!(Answers::default().account(), Account::default());
    }
}
