//! Settings of the host's network: receive and transmit packet steering, interrupts' CPUs, a link's queueing
//! discipline. The same promises as for tasks and cgroups, in a journal of its own: the original is on disk before the
//! first write, what was written is read back, everything goes back newest first, and what somebody else changed
//! meanwhile is left alone and reported.
//!
//! A journal is kept for two uses, in directories of their own: what a user set stays until `evenkeel restore`
//! ([`HostActuator::resume`]); what an experiment set is put back by its next start when it was killed
//! ([`HostActuator::open`]).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::medium::{FileMedium, Medium, OpenError};

mod files;
mod knob;
pub mod shape;

pub use files::Files;
pub use knob::{HostKnob, OUR_HANDLES};

/// Why a setting was not made or not put back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// There is no such link, queue or interrupt.
    #[error("{0}: there is none")]
    Gone(String),
    /// Not allowed.
    #[error("{0}: not permitted; run as root")]
    Denied(String),
    /// The kernel has it not.
    #[error("{0}")]
    Unsupported(String),
    /// It is not ours to change.
    #[error("{0}")]
    Refused(String),
    /// The kernel refused the value, or a file failed.
    #[error("{path}: {error}")]
    Io {
        /// File or command.
        path: String,
        /// What was said.
        error: String,
    },
}

/// The host as this module sees it; [`Files`] is the real one.
pub trait Host {
    /// The present value, in the form in which it is written.
    ///
    /// # Errors
    /// See [`HostError`].
    fn read(&mut self, knob: &HostKnob) -> Result<String, HostError>;

    /// Writes a value; does not read it back.
    ///
    /// # Errors
    /// See [`HostError`].
    fn write(&mut self, knob: &HostKnob, value: &str) -> Result<(), HostError>;

    /// Something that a link made anew under the same name does not share (its index); 0 where there is no link.
    ///
    /// # Errors
    /// [`HostError::Gone`].
    fn identity(&mut self, knob: &HostKnob) -> Result<u64, HostError>;

    /// Which boot this is: nothing of these settings outlives it.
    fn boot(&mut self) -> String;
}

/// One setting that was ever written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    knob: HostKnob,
    identity: u64,
    original: String,
    /// Every value of ours.
    wrote: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Journal {
    schema: String,
    boot: String,
    /// Oldest first.
    entries: Vec<Entry>,
}

const SCHEMA: &str = "evenkeel.host-journal/v1";

/// What came of putting one setting back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostItem {
    /// What.
    pub knob: HostKnob,
    /// What came of it.
    pub outcome: HostOutcome,
    /// The value found; `None` when there was none.
    pub found: Option<String>,
    /// The value it had at first.
    pub original: String,
    /// More, in words; empty for nothing.
    pub note: String,
}

/// What came of putting one setting back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostOutcome {
    /// Written and read back.
    PutBack,
    /// It had its original value.
    Already,
    /// The link is no more, or the host was booted since.
    Gone,
    /// Somebody else's value is there: left alone.
    Conflict,
    /// It could not be put back; the journal keeps it.
    Failed,
}

/// What was put back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostReport {
    /// One item a setting, newest first.
    pub items: Vec<HostItem>,
}

impl HostReport {
    /// Every item in words.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.items.iter().map(HostItem::to_string)
    }

    /// What is not as it was found, in words.
    pub fn problems(&self) -> impl Iterator<Item = String> + '_ {
        let bad = |item: &&HostItem| matches!(item.outcome, HostOutcome::Conflict | HostOutcome::Failed);
        self.items.iter().filter(bad).map(HostItem::to_string)
    }

    /// Whether everything is as it was found.
    pub fn is_clean(&self) -> bool {
        self.problems().next().is_none()
    }
}

impl std::fmt::Display for HostItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // An empty list of CPUs is what people call off.
        let shown = |value: &'_ str| if value.is_empty() { "off".to_owned() } else { value.to_owned() };
        let (knob, original) = (&self.knob, shown(&self.original));
        let found = self.found.as_deref().map_or_else(|| "nothing".to_owned(), shown);
        match self.outcome {
            HostOutcome::PutBack => write!(f, "{knob}: put back to {original} (was {found})")?,
            HostOutcome::Already => write!(f, "{knob}: already {original}")?,
            HostOutcome::Gone => write!(f, "{knob}: gone")?,
            HostOutcome::Conflict => {
                write!(f, "{knob}: somebody else made it {found}; left as it is (it was {original})")?;
            }
            HostOutcome::Failed => write!(f, "{knob}: could not be put back to {original}")?,
        }
        if self.note.is_empty() { Ok(()) } else { write!(f, ": {}", self.note) }
    }
}

/// Changes the host's network settings and knows how to take every change back.
pub struct HostActuator<H: Host = Files> {
    host: H,
    medium: Box<dyn Medium>,
    journal: Journal,
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostOpenError {
    /// Its directory is in use or cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be read or written.
    #[error("{path}: {error}; nothing is changed without a journal")]
    Journal {
        /// The journal.
        path: PathBuf,
        /// What is wrong.
        error: String,
    },
}

impl HostActuator<Files> {
    /// Takes a directory's lock and puts back what a predecessor left there.
    ///
    /// # Errors
    /// See [`HostOpenError`].
    pub fn open(dir: &Path) -> Result<(Self, HostReport), HostOpenError> {
        let mut actuator = Self::resume(dir)?;
        let report = actuator.restore_all();
        Ok((actuator, report))
    }

    /// Takes a directory's lock; what was set before stays set and is known.
    ///
    /// # Errors
    /// See [`HostOpenError`].
    pub fn resume(dir: &Path) -> Result<Self, HostOpenError> {
        Self::on(Files::new(), Box::new(FileMedium::open(dir)?))
    }
}

impl<H: Host> HostActuator<H> {
    /// On any host and medium.
    ///
    /// # Errors
    /// See [`HostOpenError`].
    pub fn on(mut host: H, mut medium: Box<dyn Medium>) -> Result<Self, HostOpenError> {
        let fail = |medium: &dyn Medium, error: String| HostOpenError::Journal { path: medium.name(), error };
        let bytes = medium.load().map_err(|error| fail(medium.as_ref(), error.to_string()))?;
        let boot = host.boot();
        let empty = Journal { schema: SCHEMA.into(), boot: boot.clone(), entries: Vec::new() };
        let mut journal = match bytes {
            None => empty,
            Some(bytes) if bytes.is_empty() => empty,
            Some(bytes) => serde_json::from_slice::<Journal>(&bytes)
                .map_err(|error| fail(medium.as_ref(), format!("is damaged: {error}")))?,
        };
        if journal.schema != SCHEMA {
            return Err(fail(medium.as_ref(), format!("has format {}", journal.schema)));
        }
        if journal.boot != boot {
            // These settings ended with the boot they were made in.
            journal = Journal { schema: SCHEMA.into(), boot, entries: Vec::new() };
        }
        Ok(Self { host, medium, journal })
    }

    /// The host, for reading.
    pub fn host(&mut self) -> &mut H {
        &mut self.host
    }

    /// What was changed: knob, original value, our last value.
    pub fn touched(&self) -> impl Iterator<Item = (&HostKnob, &str, &str)> {
        self.journal.entries.iter().map(|entry| {
            let last = entry.wrote.last().map_or("", String::as_str);
            (&entry.knob, entry.original.as_str(), last)
        })
    }

    /// Sets one knob and reads it back. What it was goes to the journal first.
    ///
    /// # Errors
    /// See [`HostError`]; the knob has its former value then.
    pub fn set(&mut self, knob: HostKnob, value: &str) -> Result<(), HostError> {
        let value = knob.normal(value)?;
        let identity = self.host.identity(&knob)?;
        let present = self.host.read(&knob)?;
        if present == value {
            return Ok(());
        }
        if let Some(why) = knob.cannot_be_put_back(&present) {
            return Err(HostError::Refused(why));
        }
        let known = self.journal.entries.iter().position(|e| e.knob == knob && e.identity == identity);
        let before = self.journal.clone();
        let index = match known {
            Some(index) => {
                let entry = &mut self.journal.entries[index];
                if !entry.wrote.contains(&present) && entry.original != present {
                    let why = format!("{knob}: somebody else made it {present} meanwhile; left as it is");
                    return Err(HostError::Refused(why));
                }
                entry.wrote.push(value.clone());
                index
            }
            None => {
                let entry = Entry {
                    knob: knob.clone(),
                    identity,
                    original: present.clone(),
                    wrote: vec![value.clone()],
                };
                self.journal.entries.push(entry);
                self.journal.entries.len() - 1
            }
        };
        if let Err(error) = self.save() {
            self.journal = before;
            return Err(error);
        }
        let result = self.host.write(&knob, &value).and_then(|()| self.host.read(&knob));
        match result {
            Ok(now) if now == value => Ok(()),
            Ok(now) => {
                // What the kernel made of it is ours as well.
                self.journal.entries[index].wrote.push(now.clone());
                let _ = self.save();
                let _ = self.host.write(&knob, &present);
                Err(HostError::Io {
                    path: knob.to_string(),
                    error: format!("wrote {value}, but it reads {now}"),
                })
            }
            Err(error) => {
                if self.host.read(&knob).is_ok_and(|now| now == present) {
                    self.journal = before;
                    let _ = self.save();
                }
                Err(error)
            }
        }
    }

    /// Puts everything back, newest first. What failed stays in the journal.
    pub fn restore_all(&mut self) -> HostReport {
        let mut report = HostReport::default();
        let mut left = Vec::new();
        for entry in std::mem::take(&mut self.journal.entries).into_iter().rev() {
            let item = put_back(&mut self.host, &entry);
            if item.outcome == HostOutcome::Failed {
                left.insert(0, entry);
            }
            report.items.push(item);
        }
        self.journal.entries = left;
        let saved = if self.journal.entries.is_empty() {
            self.medium.remove().map_err(|error| error.to_string())
        } else {
            self.save().map_err(|error| error.to_string())
        };
        if let (Err(error), Some(item)) = (saved, report.items.last_mut()) {
            item.note = format!("the journal could not be brought up to date: {error}");
        }
        report
    }

    /// Puts everything back and ends.
    pub fn close(mut self) -> HostReport {
        self.restore_all()
    }

    fn save(&mut self) -> Result<(), HostError> {
        let io = |medium: &dyn Medium, error: String| HostError::Io {
            path: medium.name().display().to_string(),
            error: format!("{error}; not changed, because it could not be journaled"),
        };
        let bytes =
            serde_json::to_vec(&self.journal).map_err(|error| io(self.medium.as_ref(), error.to_string()))?;
        self.medium.replace(&bytes).map_err(|error| io(self.medium.as_ref(), error.to_string()))
    }
}

fn put_back(host: &mut impl Host, entry: &Entry) -> HostItem {
    let item = |outcome, found: Option<String>, note: String| HostItem {
        knob: entry.knob.clone(),
        outcome,
        found,
        original: entry.original.clone(),
        note,
    };
    match host.identity(&entry.knob) {
        Ok(identity) if identity == entry.identity => {}
        Ok(_) | Err(HostError::Gone(_)) => return item(HostOutcome::Gone, None, String::new()),
        Err(error) => return item(HostOutcome::Failed, None, error.to_string()),
    }
    let present = match host.read(&entry.knob) {
        Ok(present) => present,
        Err(HostError::Gone(_)) => return item(HostOutcome::Gone, None, String::new()),
        Err(error) => return item(HostOutcome::Failed, None, error.to_string()),
    };
    if present == entry.original {
        return item(HostOutcome::Already, Some(present), String::new());
    }
    if !entry.wrote.contains(&present) {
        return item(HostOutcome::Conflict, Some(present), String::new());
    }
    match host.write(&entry.knob, &entry.original).and_then(|()| host.read(&entry.knob)) {
        Ok(now) if now == entry.original => item(HostOutcome::PutBack, Some(present), String::new()),
        Ok(now) => item(HostOutcome::Failed, Some(present), format!("it reads {now}")),
        Err(error) => item(HostOutcome::Failed, Some(present), error.to_string()),
    }
}

#[cfg(test)]
#[path = "host/tests.rs"]
mod tests;
