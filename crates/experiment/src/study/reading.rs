//! The source's empty tables, filled: work that reads files, by its share of the machine, under each kind of limit.

use super::verdict::{Held, held};
use super::{PointStudy, Reading, Study, TenantStudy, option};

evenkeel_base::named! {
/// How the threads of a tenant read files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    Own = "own",
    /// The same file, each by a descriptor of its own.
    Same = "same",
    /// The same file, all by one descriptor: `read()` locks its position.
    OneDescriptor = "one descriptor",
    /// As `Own`, by `pread()`.
    OwnPread = "own by pread",
    /// As `Same`, by `pread()`.
    SamePread = "same by pread",
    /// As `OneDescriptor`, by `pread()`, which does not look at the descriptor's position.
    OneDescriptorPread = "one descriptor by pread",
}
}

impl Reads {
    /// Of a workload's command line; `None` where it reads no file.
    pub fn of(workload: &str) -> Option<Self> {
        let has = |flag: &str| workload.split_ascii_whitespace().any(|word| word == flag);
        let pread = has("--pread");
        Some(match (option(workload, "--read")?, has("--shared-fd")) {
            ("own", _) if pread => Self::OwnPread,
            ("own", _) => Self::Own,
            ("same", true) if pread => Self::OneDescriptorPread,
            ("same", true) => Self::OneDescriptor,
            ("same", false) if pread => Self::SamePread,
            ("same", false) => Self::Same,
            _ => return None,
        })
    }

    /// First part of the names of its verdicts.
    pub fn id(self) -> &'static str {
        match self {
            Self::Own => "own-file",
            Self::Same => "same-file",
            Self::OneDescriptor => "one-descriptor",
            Self::OwnPread => "own-pread",
            Self::SamePread => "same-pread",
            Self::OneDescriptorPread => "one-descriptor-pread",
        }
    }

    /// In a sentence, after "reading".
    pub fn words(self) -> &'static str {
        match self {
            Self::Own => "a file of its own",
            Self::Same => "the same file",
            Self::OneDescriptor => "through one descriptor for all threads",
            Self::OwnPread => "a file of its own by pread",
            Self::SamePread => "the same file by pread",
            Self::OneDescriptorPread => "through one descriptor by pread",
        }
    }
}

/// What holds a tenant, and its share of the machine by that, above 0; `None` where nothing holds it, and where the machine's
/// CPUs are not known.
pub(super) fn share(study: &Study, point: &PointStudy, tenant: &TenantStudy) -> Option<(Held, f64)> {
    // Of hosts that differ in their number there is none.
    let of_all = |cpus: f64| Some(cpus / f64::from(study.host.cpus.filter(|all| *all > 0)?));
    let held = held(study, point, &tenant.limits);
    let share = match held {
        Held::Cpuset => of_all(tenant.limits.cpus.as_ref()?.len() as f64)?,
        Held::Quota => of_all(tenant.limits.quota_pct? / 100.0)?,
        Held::Shares => tenant.weight_pct? / 100.0,
        Held::Nothing => return None,
    };
    (share > 0.0).then_some((held, share))
}

/// Every reader of files that was held by something, ordered by file, limit and share.
pub(super) fn readings(study: &Study) -> Vec<Reading> {
    let mut found: Vec<Reading> = study
        .points
        .iter()
        .flat_map(|point| point.tenants.iter().map(move |tenant| (point, tenant)))
        .filter_map(|(point, tenant)| {
            let reads = Reads::of(&tenant.workload)?;
            let (limit, share) = share(study, point, tenant)?;
            Some(Reading {
                file: reads.name().to_owned(),
                limit: limit.name().to_owned(),
                share_pct: 100.0 * share,
                real_s: tenant.elapsed_s,
                cut_off: tenant.cut_off,
                sys_s: tenant.sys_s,
                user_s: tenant.user_s,
            })
        })
        .collect();
    found.sort_by(|a, b| {
        (&a.file, &a.limit).cmp(&(&b.file, &b.limit)).then(a.share_pct.total_cmp(&b.share_pct))
    });
    found
}

#[cfg(test)]
mod tests {
    use super::Reads;
    use crate::record::Limits;
    use crate::study::study;
    use crate::study::testing::{cell, record, steady};

    #[test]
    fn ways_of_reading_are_told_by_the_command_line() {
        let mut names = std::collections::BTreeSet::new();
        for (options, reads) in [
            ("--read own", Some(Reads::Own)),
            ("--read=same --dir /x", Some(Reads::Same)),
            ("--shared-fd --read same", Some(Reads::OneDescriptor)),
            ("--read own --pread", Some(Reads::OwnPread)),
            ("--pread --read=same", Some(Reads::SamePread)),
            ("--read same --pread --shared-fd", Some(Reads::OneDescriptorPread)),
            ("--read none", None),
            ("", None),
        ] {
            assert_eq!(Reads::of(&format!("sieve --from=1 --to=9 {options}")), reads, "{options}");
            assert!(reads.is_none_or(|reads| names.insert(reads.name())), "{options}");
        }
    }

    #[test]
    fn shares_of_the_machine_are_told_by_what_holds_the_reader() {
        let point = |limits: Limits, read: &str| {
            let mut reader = steady("b", 1, 1, 10.0);
            reader.limits = limits;
            reader.workload = format!("sieve --from 1 --to 9 --read {read}");
            let mut burner = steady("a", 1, 1, 10.0);
            burner.limits.shares = Some(1024);
            cell(vec![burner, reader])
        };
        let study = study(&record(vec![
            ("1", point(Limits { quota_pct: Some(50.0), shares: Some(1024), ..Limits::default() }, "own")),
            (
                "2",
                point(Limits { shares: Some(3072), cpus: "0-1".parse().ok(), ..Limits::default() }, "same"),
            ),
            ("3", point(Limits { shares: Some(1024), cpus: "0".parse().ok(), ..Limits::default() }, "same")),
            ("4", point(Limits::default(), "none")),
        ]));
        let told: Vec<_> =
            study.readings.iter().map(|r| (r.file.as_str(), r.limit.as_str(), r.share_pct)).collect();
        assert_eq!(told, [("own", "quota", 25.0), ("same", "cpuset", 50.0), ("same", "shares", 75.0)]);
    }

    #[test]
    fn of_hosts_that_differ_in_their_cpus_a_cpuset_is_no_share() {
        let mut reader = steady("b", 1, 1, 10.0);
        (reader.limits.cpus, reader.workload) =
            ("0-1".parse().ok(), "sieve --from 1 --to 9 --read own".into());
        let mut alone = steady("a", 1, 5, 10.0);
        alone.limits.cpus = "0".parse().ok();
        let mut cells = vec![("1", cell(vec![reader, steady("c", 1, 1, 10.0)])), ("2", cell(vec![alone]))];
        for (_, cell) in &mut cells {
            cell.host.steal_s = Some(0.05 * cell.seconds);
        }
        let mut record = record(cells);
        // As `lab merge` leaves it.
        record.host.cpus = None;
        let of = |record: &crate::record::Record| {
            let study = study(record);
            let stolen = study.verdicts.into_iter().find(|v| v.id == "host-stolen");
            (study.readings.len(), stolen.and_then(|v| v.test.value), study.overhead.is_some())
        };
        assert_eq!(of(&record), (0, None, false));
        // One CPU of one is all of it.
        record.host.cpus = Some(1);
        assert!(matches!(of(&record), (_, Some(pct), true) if (pct - 5.0).abs() < 1e-9), "{:?}", of(&record));
    }
}
