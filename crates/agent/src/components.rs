//! The components of a run. A new one is a file here, and a line in [`Components::new`].

mod headroom;
mod turns;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_actuate::SetReport;
use evenkeel_base::run::RunRecord;
use evenkeel_base::{Change, Plan};
use evenkeel_policy::levers::Features;

use crate::component::{Component, Next, Seen};
use crate::config::Config;
use crate::controls::Controls;
use crate::governor::ScopeGovernor;
use crate::guarantee::Promises;
use crate::protect::LatencySlos;
use crate::scope::Scope;
use headroom::Headroom;
use turns::LostTurns;

/// All of them. Those that decisions ask have names.
pub(crate) struct Components {
    /// Promised shares.
    pub promises: Promises,
    /// Waits of protected scopes.
    pub latency_slos: LatencySlos,
    others: Vec<Box<dyn Component + Send>>,
}

impl Components {
    /// Those that a configuration asks for.
    pub fn new(config: &Config, features: Features) -> Self {
        let limit = config.limit.clone().filter(|_| config.apply);
        let next_to = config.protect.iter().filter(|_| config.background.is_some());
        let services: Vec<Scope> = next_to.map(|service| service.scope.clone()).collect();
        let others = [
            // Limits of one cgroup have one who sets them.
            (config.background.is_some() && limit.is_none()).then(|| boxed(Headroom::default())),
            limit.map(|auto| boxed(ScopeGovernor::new(auto.instance, services))),
            LostTurns::new(config).map(boxed),
        ];
        Self {
            promises: Promises::new(config, features.task_slice),
            latency_slos: LatencySlos::new(&config.protect, config.rules.guard.wait_factor),
            others: others.into_iter().flatten().collect(),
        }
    }

    fn all(&self) -> impl Iterator<Item = &dyn Component> {
        let named: [&dyn Component; 2] = [&self.promises, &self.latency_slos];
        named.into_iter().chain(self.others.iter().map(|other| &**other as &dyn Component))
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut dyn Component> {
        let named: [&mut dyn Component; 2] = [&mut self.promises, &mut self.latency_slos];
        named.into_iter().chain(self.others.iter_mut().map(|other| &mut **other as &mut dyn Component))
    }

    /// The loop's timer went off.
    pub fn on_tick(&mut self, late: Duration, controls: &mut Controls) {
        self.all_mut().for_each(|component| component.on_tick(late, controls));
    }

    /// Becomes readable when a component is to be told at once.
    pub fn word(&self) -> Option<Arc<OwnedFd>> {
        self.all().find_map(Component::word)
    }

    /// It became.
    pub fn on_word(&mut self, controls: &mut Controls) {
        self.all_mut().for_each(|component| component.on_word(controls));
    }

    /// The host was observed. Returns whether everything has to be set again.
    pub fn on_window(&mut self, seen: Seen<'_>, controls: &mut Controls) -> Next {
        let wants = |component: &mut dyn Component| component.on_window(seen, controls);
        let wishes: Vec<Next> = self.all_mut().map(wants).collect();
        if wishes.contains(&Next::SetAll) { Next::SetAll } else { Next::Stays }
    }

    /// What they want in force.
    pub fn changes(&self) -> Vec<Change> {
        self.all().flat_map(Component::changes).collect()
    }

    /// What came of setting a plan.
    pub fn learn(&mut self, plan: &Plan, report: &SetReport) {
        self.all_mut().for_each(|component| component.learn(plan, report));
    }

    /// Brings the record up to date.
    pub fn status(&self, record: &mut RunRecord) {
        self.all().for_each(|component| component.status(record));
    }

    /// Messages for people since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        self.all_mut().flat_map(Component::take_notes).collect()
    }
}

fn boxed(component: impl Component + Send + 'static) -> Box<dyn Component + Send> {
    Box::new(component)
}
