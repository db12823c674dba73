//! A cell's tenants while they run, whatever they run in.

use std::collections::HashMap;
use std::path::Path;

use super::RunError;
use super::docker::{Containers, Request};
use super::groups::TenantGroup;
use super::pods::Pods;
use super::spawn::{self, Launch};
use crate::mounts::CgroupMounts;
use evenkeel_linux::children::Children;

/// Processes and containers, by the tenants' numbers.
#[derive(Debug, Default)]
pub(super) struct Running {
    processes: Option<Children>,
    /// Where among the processes.
    at: HashMap<usize, usize>,
    containers: Option<Containers>,
    pods: Option<Pods>,
}

impl Running {
    /// Prepares for containers and for pods, where there are to be any.
    pub fn prepare(name: &str, containers: bool, pods: bool) -> Result<Self, RunError> {
        Ok(Self {
            containers: if containers { Some(Containers::prepare(name)?) } else { None },
            pods: if pods { Some(Pods::prepare(name)?) } else { None },
            ..Self::default()
        })
    }

    /// Starts processes, in this order.
    pub fn launch(&mut self, launches: Vec<(usize, Launch)>) -> Result<(), RunError> {
        if launches.is_empty() {
            return Ok(());
        }
        self.at = launches.iter().enumerate().map(|(at, (number, _))| (*number, at)).collect();
        let launches = launches.into_iter().map(|(_, launch)| launch).collect();
        self.processes = Some(spawn::start(launches)?);
        Ok(())
    }

    /// Starts a container or a pod; gives the groups the engine put it into.
    pub fn contain(
        &mut self,
        binary: &Path,
        scratch: &Path,
        mounts: &CgroupMounts,
        request: &Request<'_>,
    ) -> Result<Option<TenantGroup>, RunError> {
        let pid = match (&mut self.containers, &mut self.pods, request.pod) {
            (Some(containers), _, false) => containers.start(binary, scratch, request)?,
            (_, Some(pods), true) => pods.start(binary, scratch, request)?,
            _ => return Ok(None),
        };
        Ok(TenantGroup::of_process(mounts, pid))
    }

    /// How a tenant ended, if it has.
    pub fn ended(&mut self, number: usize) -> Option<String> {
        if let (Some(at), Some(processes)) = (self.at.get(&number), &mut self.processes) {
            return processes.ended(*at).map(|status| status.to_string());
        }
        let container = self.containers.as_ref().and_then(|containers| containers.ended(number));
        container.or_else(|| self.pods.as_ref()?.ended(number))
    }

    /// Asks one to end (SIGTERM).
    pub fn ask_to_end(&mut self, number: usize) {
        if let (Some(at), Some(processes)) = (self.at.get(&number), &mut self.processes) {
            return processes.ask_to_end(*at);
        }
        // Either knows its own tenants only.
        if let Some(containers) = &self.containers {
            containers.ask_to_end(number);
        }
        if let Some(pods) = &self.pods {
            pods.ask_to_end(number);
        }
    }
}
