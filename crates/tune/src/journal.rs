//! The record of trials: one line each, on disk before the next begins, so that a search goes on after `kill -9`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use evenkeel_experiment::record::Host;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::error::TuneError;
use super::expand::Settings;
use super::file::Tune;

/// How to run a search.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the record and results are.
    pub dir: PathBuf,
    /// Start over though there is a record.
    pub fresh: bool,
    /// What this host is.
    pub host: Host,
}

/// First line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Head {
    schema: String,
    name: String,
    /// Of everything that makes trials comparable: parameters, commands, what is measured. Not the budget, nor the method.
    fingerprint: String,
    /// Where it was begun; records of earlier versions do not say it.
    #[serde(default)]
    host: Option<Host>,
}

const SCHEMA: &str = "evenkeel.tune-trials/v1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// Number, from 1.
    pub number: usize,
    pub settings: Settings,
    /// `new`, `confirm` or `last-round`.
    pub reason: String,
    /// What was read, in the readings' order; `None` when it failed.
    pub values: Option<Vec<f64>>,
    pub error: Option<String>,
    /// Wall clock at its start, nanoseconds since 1970.
    pub started_ns: u64,
    /// How long it took, seconds.
    pub seconds: f64,
}

/// An open record, locked against a second search in the same directory.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    /// What makes this host another than that on which the search was begun, if anything does.
    pub differs: Option<String>,
}

fn fingerprint(tune: &Tune) -> String {
    let f = &tune.file;
    let text = format!(
        "{:?}{:?}{:?}{:?}{:?}{:?}",
        f.parameters, f.service, f.measure, f.objective, f.quantities, f.constraints
    );
    // FNV-1a, 64 bits.
    let hash =
        text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

impl Journal {
    /// Opens the record of a directory, or begins one; gives what is in it. A torn last line is cut off.
    pub fn open(options: &Options, tune: &Tune) -> Result<(Self, Vec<TrialRecord>), TuneError> {
        let Options { dir, fresh, host } = options;
        let path = dir.join("trials.jsonl");
        let fail = |error: io::Error| TuneError::Io { path: path.clone(), error };
        fs::create_dir_all(dir).map_err(|error| TuneError::Io { path: dir.into(), error })?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(fail)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(TuneError::Busy(dir.into()));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(fail)?;
        // A torn end may be torn within a character.
        let end = bytes.iter().rposition(|byte| *byte == b'\n').filter(|_| !fresh);
        let whole = end.map_or(0, |end| end + 1);
        let text = std::str::from_utf8(&bytes[..whole]).map_err(|error| TuneError::Damaged {
            path: path.clone(),
            line: 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count(),
            what: error.to_string(),
        })?;
        let mut lines = text.lines();
        let (schema, name, fingerprint) = (SCHEMA.to_owned(), tune.name.clone(), fingerprint(tune));
        let head = Head { schema, name, fingerprint, host: Some(host.clone()) };
        let (mut records, mut differs) = (Vec::new(), None);
        match lines.next() {
            None => {
                let line = serde_json::to_string(&head).map_err(|e| fail(e.into()))?;
                file.set_len(0).and_then(|()| file.rewind()).map_err(fail)?;
                file.write_all((line + "\n").as_bytes()).and_then(|()| file.sync_all()).map_err(fail)?;
            }
            Some(line) => {
                let found: Head = serde_json::from_str(line).map_err(|_| TuneError::Foreign(path.clone()))?;
                if found.schema != head.schema || found.fingerprint != head.fingerprint {
                    return Err(TuneError::Other { dir: dir.into(), name: found.name });
                }
                differs = found.host.and_then(|there| host.differs_from(&there));
                for (number, line) in lines.enumerate() {
                    let record = serde_json::from_str(line).map_err(|error| TuneError::Damaged {
                        path: path.clone(),
                        line: number + 2,
                        what: error.to_string(),
                    })?;
                    records.push(record);
                }
                file.set_len(whole as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(fail)?;
            }
        }
        Ok((Self { file, path, differs }, records))
    }

    /// Adds a trial; it is on disk when this returns.
    pub fn append(&mut self, record: &TrialRecord) -> Result<(), TuneError> {
        let fail = |error: io::Error| TuneError::Io { path: self.path.clone(), error };
        let line = serde_json::to_string(record).map_err(|e| fail(e.into()))? + "\n";
        self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data()).map_err(fail)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn tune(extra: &str) -> Tune {
        let text = format!(
            "[[parameter]]\nname='x'\nkind='integer'\nlow=1\nhigh=9\n[measure]\ncommand=['a','{{x}}']\n\
             [objective]\nname='y'\ngoal='min'\naccount='real_s'\n{extra}"
        );
        Tune::parse(Path::new("t.toml"), &text).unwrap()
    }

    fn on(dir: &Path, kernel: &str, fresh: bool) -> Options {
        Options { dir: dir.into(), fresh, host: Host { kernel: Some(kernel.into()), ..Host::default() } }
    }

    fn record(number: usize) -> TrialRecord {
        TrialRecord {
            number,
            settings: Settings::default().with("x", "1"),
            reason: "new".into(),
            values: Some(vec![1.5]),
            error: None,
            started_ns: 1,
            seconds: 0.5,
        }
    }

    #[test]
    fn trials_survive_even_a_torn_end_and_another_search_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = |tune: &Tune, fresh| Journal::open(&on(dir.path(), "6.12", fresh), tune);
        let (mut journal, found) = open(&tune(""), false).unwrap();
        assert!(found.is_empty());
        assert!(matches!(open(&tune(""), false), Err(TuneError::Busy(_))));
        journal.append(&record(1)).unwrap();
        journal.append(&record(2)).unwrap();
        drop(journal);
        let path = dir.path().join("trials.jsonl");
        let mut text = fs::read(&path).unwrap();
        text.extend("{\"number\":3,\"settings\":{\"x\":\"ö".bytes());
        text.pop();
        fs::write(&path, text).unwrap();
        // Another budget is the same search.
        let (mut journal, found) = open(&tune("[budget]\ntrials=9\n"), false).unwrap();
        assert_eq!(found, [record(1), record(2)]);
        journal.append(&record(3)).unwrap();
        drop(journal);
        let (_, found) = open(&tune(""), false).unwrap();
        assert_eq!(found.len(), 3);
        let other = tune("[measure.env]\nA='1'\n");
        assert!(matches!(open(&other, false), Err(TuneError::Other { .. })));
        let (_, found) = open(&other, true).unwrap();
        assert!(found.is_empty());
        fs::write(&path, "hello\n").unwrap();
        assert!(matches!(open(&other, false), Err(TuneError::Foreign(_))));
        fs::write(&path, b"{}\n{\"name\": \"\xff\"}\n").unwrap();
        assert!(matches!(open(&other, false), Err(TuneError::Damaged { line: 2, .. })));
    }

    #[test]
    fn a_search_that_was_begun_on_another_kernel_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let differs =
            |kernel, fresh| Journal::open(&on(dir.path(), kernel, fresh), &tune("")).unwrap().0.differs;
        assert_eq!((differs("6.12", false), differs("6.12", false)), (None, None));
        assert_eq!(differs("7.1", false).as_deref(), Some("kernel \"7.1\" and not \"6.12\""));
        assert_eq!((differs("7.1", true), differs("7.1", false)), (None, None));
        // As earlier versions began it.
        let path = dir.path().join("trials.jsonl");
        let mut head: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        head.as_object_mut().unwrap().remove("host");
        fs::write(&path, format!("{head}\n")).unwrap();
        assert_eq!(differs("6.12", false), None);
    }
}
