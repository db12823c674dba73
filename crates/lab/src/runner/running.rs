//! A cell's tenants while they run, whatever they run in.

use std::collections::HashMap;

use super::RunError;
use super::groups::TenantGroup;
use super::pods::Pods;
use crate::launch::{Container, Containers, Launch, start};
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
            containers: if containers { Some(Containers::prepare(name, None)?) } else { None },
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
        self.processes = Some(start(launches)?);
        Ok(())
    }

    /// Starts a tenant in a container, or in a pod; gives the groups the engine put it into.
    pub fn contain(
        &mut self,
        number: usize,
        pod: bool,
        container: &Container<'_>,
        mounts: &CgroupMounts,
    ) -> Result<Option<TenantGroup>, RunError> {
        let pid = match (&mut self.containers, &mut self.pods, pod) {
            (Some(containers), _, false) => containers.start(number, container)?,
            (_, Some(pods), true) => pods.start(number, container)?,
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
