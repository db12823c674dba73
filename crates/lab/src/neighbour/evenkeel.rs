//! evenkeel at work in a cell: started, ended, and what it says of itself.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_base::GroupRef;
use evenkeel_base::run::StageName;
use evenkeel_linux::children::Children;
use serde::Deserialize;

use super::record::Chosen;
use crate::launch::{Launch, start};
use crate::runner::RunError;

/// How long it may take to undo what it did.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// `evenkeel run --service .. --background ..`, until dropped.
pub(super) struct Evenkeel {
    process: Children,
    output: PathBuf,
    messages: PathBuf,
}

impl Evenkeel {
    /// Starts it with its files in `dir`.
    pub fn start(
        binary: &Path,
        dir: &Path,
        services: &[GroupRef],
        background: &GroupRef,
    ) -> Result<Self, RunError> {
        let (output, messages) = (dir.join("run.json"), dir.join("run.err"));
        let state = dir.join("state").display().to_string();
        let mut arguments: Vec<String> =
            ["--state-dir", &state, "run", "-o", "json"].map(str::to_owned).to_vec();
        arguments.extend(services.iter().map(|group| format!("--service=cgroup:{}", group.path)));
        arguments.push(format!("--background=cgroup:{}", background.path));
        let file =
            |path: &Path| File::create(path).map_err(|e| RunError::system(path.display().to_string(), e));
        let launch = Launch {
            output: Some(file(&output)?),
            messages: Some(file(&messages)?),
            undoes: true,
            ..Launch::new(binary, arguments)
        };
        Ok(Self { process: start(vec![launch])?, output, messages })
    }

    /// Ends it once it has restored everything, and says what it chose.
    pub fn end(mut self) -> Result<Chosen, String> {
        if !self.has_ended() {
            return Err(format!("evenkeel did not end within 30 s; {}", self.last_words()));
        }
        let document = fs::read_to_string(&self.output).ok().and_then(|text| chosen(&text));
        document.ok_or_else(|| format!("evenkeel gave no account of its run; {}", self.last_words()))
    }

    /// Asks it to end, and waits for that.
    fn has_ended(&mut self) -> bool {
        let until = Instant::now() + ENDS_WITHIN;
        if !self.process.finished() {
            self.process.ask_to_end(0);
        }
        while !self.process.finished() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// The last of its messages that is not empty.
    fn last_words(&self) -> String {
        let text = fs::read(&self.messages).or_else(|_| Ok::<_, io::Error>(Vec::new())).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        match text.lines().rfind(|line| !line.trim().is_empty()) {
            Some(line) => format!("its last words: {}", line.trim()),
            None => "it said nothing".to_owned(),
        }
    }
}

/// However the cell ends: what it changed is restored, where it can.
impl Drop for Evenkeel {
    fn drop(&mut self) {
        self.has_ended();
    }
}

/// What is read of its document.
#[derive(Deserialize)]
struct Document {
    settings: String,
    #[serde(default)]
    stages: Vec<StageRead>,
    #[serde(default)]
    restored: Restored,
}

#[derive(Deserialize)]
struct StageRead {
    name: StageName,
    why: String,
}

#[derive(Default, Deserialize)]
struct Restored {
    failed: u64,
    conflicts: u64,
}

/// What its document (`evenkeel.run/v1`) says; `None` where it is none.
fn chosen(text: &str) -> Option<Chosen> {
    let Document { settings, stages, restored } = serde_json::from_str(text).ok()?;
    let in_force = stages.iter().rev().find(|stage| stage.name.settings == settings);
    let why = match (in_force, stages.first()) {
        // Every trial begins with the present state. Why that stayed is said of what was tried instead.
        (Some(stage), Some(first)) if stage.name == first.name && stages.len() > 1 => {
            let tried = stages.iter().filter(|stage| stage.name != first.name);
            tried.map(|stage| format!("{} {}", stage.name, stage.why)).collect::<Vec<_>>().join("; ")
        }
        (Some(stage), _) => stage.why.clone(),
        (None, _) => String::new(),
    };
    Some(Chosen { settings, why, not_restored: restored.failed + restored.conflicts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_read_from_its_document() {
        let text = r#"{"schema": "evenkeel.run/v1", "settings": "idle groups", "restored": {"failed": 1, "conflicts": 2},
            "stages": [{"name": "trial kernel default", "why": "the present state"}, {"name": "trial idle groups", "why": "kept: x"},
            {"name": "trial least weight", "why": "taken back"}]}"#;
        let expected = Chosen { settings: "idle groups".into(), why: "kept: x".into(), not_restored: 3 };
        assert_eq!(chosen(text), Some(expected));
        // Nothing helped: what each did is why.
        let none = chosen(&text.replace("\"settings\": \"idle groups\"", "\"settings\": \"kernel default\""))
            .unwrap();
        assert_eq!(none.why, "trial idle groups kept: x; trial least weight taken back");
        let bare = Chosen { settings: "kernel default".into(), ..Chosen::default() };
        assert_eq!(chosen(r#"{"settings": "kernel default"}"#), Some(bare));
        assert_eq!((chosen("{}"), chosen("")), (None, None));
    }
}
