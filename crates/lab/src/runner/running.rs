//! A cell's tenants while they run, whatever they run in.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::RunError;
use super::docker::{Containers, Request};
use super::groups::{Places, TenantGroup};
use super::spawn::{self, Launch};
use crate::children::Children;

/// Processes and containers, by the tenants' numbers.
#[derive(Debug, Default)]
pub(super) struct Running {
    processes: Option<Children>,
    /// Where among the processes.
    at: HashMap<usize, usize>,
    containers: Option<Containers>,
}

impl Running {
    /// Prepares for containers.
    pub fn with_containers(name: &str) -> Result<Self, RunError> {
        Ok(Self { containers: Some(Containers::prepare(name)?), ..Self::default() })
    }

    /// Starts processes, in this order.
    pub fn launch(&mut self, binary: &Path, launches: Vec<(usize, Launch)>) -> Result<(), RunError> {
        if launches.is_empty() {
            return Ok(());
        }
        self.at = launches.iter().enumerate().map(|(at, (number, _))| (*number, at)).collect();
        let launches = launches.into_iter().map(|(_, launch)| launch).collect();
        self.processes = Some(spawn::start(PathBuf::from(binary), launches)?);
        Ok(())
    }

    /// Starts a container; gives the groups the engine put it into.
    pub fn contain(
        &mut self,
        binary: &Path,
        scratch: &Path,
        places: &Places,
        request: &Request<'_>,
    ) -> Result<Option<TenantGroup>, RunError> {
        match &mut self.containers {
            Some(containers) => {
                let pid = containers.start(binary, scratch, request)?;
                Ok(TenantGroup::of_process(places, pid))
            }
            None => Ok(None),
        }
    }

    /// How a tenant ended, if it has.
    pub fn ended(&mut self, number: usize) -> Option<String> {
        match (self.at.get(&number), &mut self.processes, &self.containers) {
            (Some(at), Some(processes), _) => processes.ended(*at).map(|status| status.to_string()),
            (_, _, Some(containers)) => containers.ended(number),
            _ => None,
        }
    }

    /// Asks one to end (SIGTERM).
    pub fn ask_to_end(&mut self, number: usize) {
        match (self.at.get(&number), &mut self.processes, &self.containers) {
            (Some(at), Some(processes), _) => processes.ask_to_end(*at),
            (_, _, Some(containers)) => containers.ask_to_end(number),
            _ => {}
        }
    }
}
