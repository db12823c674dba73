//! A Docker Engine as the tenants of loads and of experiments use it.
//!
//! No registry is needed: the image is empty (an empty tar, imported on the spot), what runs is bound in read-only from
//! the host. Containers carry their starter's name in a label, so that those of dead starters can be told and removed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_observe::runtimes::engine::{self, encoded};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::launch::LaunchError;

/// How long the engine may take for one answer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Where it listens unless something else is said.
const SOCKET: &str = "/var/run/docker.sock";

/// The engine's API, as far as tenants need it.
#[derive(Debug)]
pub(crate) struct Engine(engine::Engine);

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Made {
    id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    labels: Option<HashMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    state: State,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    pid: u32,
}

/// A line of what the engine tells while it imports an image.
#[derive(Deserialize)]
struct Progress {
    error: Option<String>,
}

impl Engine {
    /// The engine behind a socket, or the usual one.
    pub(crate) fn connect(socket: Option<&Path>) -> Result<Self, LaunchError> {
        let usual = || {
            let named = std::env::var("DOCKER_HOST").ok();
            PathBuf::from(named.as_deref().and_then(|host| host.strip_prefix("unix://")).unwrap_or(SOCKET))
        };
        let socket = socket.map_or_else(usual, Path::to_owned);
        engine::Engine::connect(&socket, TIMEOUT).map(Self).map_err(|error| {
            LaunchError::NoContainers(format!(
                "no Docker Engine answers ({error}); start dockerd, set DOCKER_HOST to its unix:// socket, or choose \
                 cgroups as the place"
            ))
        })
    }

    fn ask(&self, method: &str, path: &str, body: Option<(&str, &[u8])>) -> Result<Vec<u8>, String> {
        self.0.ask(method, path, body, TIMEOUT)
    }

    /// Imports an empty image for the containers of one starter; gives its name.
    pub(crate) fn empty_image(&self, starter: &str) -> Result<String, String> {
        let path = format!("/images/create?fromSrc=-&repo={}&tag=empty", encoded(starter));
        // An empty tar is two blocks of zeros.
        let told = self.ask("POST", &path, Some(("application/x-tar", &[0; 1024])))?;
        // It says that it will, then whether it could.
        let mut lines = told.split(|byte| *byte == b'\n');
        match lines.find_map(|line| serde_json::from_slice::<Progress>(line).ok()?.error) {
            Some(error) => Err(error),
            None => Ok(image_of(starter)),
        }
    }

    /// Removes containers, with their images, whose starter by this label is `stale`.
    pub(crate) fn sweep(&self, label: &str, stale: impl Fn(&str) -> bool) -> Result<(), String> {
        let filters = encoded(&serde_json::json!({"label": [label]}).to_string());
        let list = self.ask("GET", &format!("/containers/json?all=true&filters={filters}"), None)?;
        for Listed { id, labels } in read::<Vec<Listed>>(&list)? {
            let starter = labels.unwrap_or_default().remove(label).unwrap_or_default();
            if stale(&starter) {
                self.remove(&id);
                self.remove_image(&image_of(&starter));
            }
        }
        Ok(())
    }

    /// Makes a container that does not run yet; gives its id.
    pub(crate) fn create(&self, name: &str, container: &Value) -> Result<String, String> {
        let body = container.to_string();
        let path = format!("/containers/create?name={}", encoded(name));
        let made: Made = read(&self.ask("POST", &path, Some(("application/json", body.as_bytes())))?)?;
        Ok(made.id)
    }

    /// Starts one; gives its first process as the host numbers it, `None` if it ended at once.
    pub(crate) fn start(&self, id: &str) -> Result<Option<u32>, String> {
        self.ask("POST", &format!("/containers/{id}/start"), None)?;
        let inspected: Inspected = read(&self.ask("GET", &format!("/containers/{id}/json"), None)?)?;
        Ok(Some(inspected.state.pid).filter(|pid| *pid > 0))
    }

    /// Asks one to end (SIGTERM).
    pub(crate) fn ask_to_end(&self, id: &str) {
        let _ = self.ask("POST", &format!("/containers/{id}/kill?signal=SIGTERM"), None);
    }

    /// Removes one, running or not.
    pub(crate) fn remove(&self, id: &str) {
        if let Err(error) = self.ask("DELETE", &format!("/containers/{id}?force=true&v=true"), None) {
            tracing::warn!("cannot remove container {id}: {error}");
        }
    }

    pub(crate) fn remove_image(&self, image: &str) {
        if let Err(error) = self.ask("DELETE", &format!("/images/{}?force=true", encoded(image)), None) {
            tracing::warn!("cannot remove image {image}: {error}");
        }
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("answers what is not understood: {error}"))
}

fn image_of(starter: &str) -> String {
    format!("{starter}:empty")
}
