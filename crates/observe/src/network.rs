//! What networks transfer: the host's, and those of containers that have one of their own.

use std::collections::BTreeMap;
use std::time::Instant;

use evenkeel_base::{NetworkRate, NetworkRates, NetworkUse, Observation};
use evenkeel_linux::Root;

use crate::beside::{own_network, read_host_network};

/// What networks had transferred at an instant.
#[derive(Debug, Clone)]
pub struct NetworkCounters {
    at: Instant,
    host: NetworkUse,
    /// By id, with what tells the namespace from others.
    containers: BTreeMap<String, (u64, NetworkUse)>,
}

impl NetworkCounters {
    /// Reads them for the containers of an observation: three files and as many lookups each.
    pub fn read(root: &Root, observation: &Observation) -> Self {
        let mut pids = BTreeMap::new();
        for task in observation.tasks.iter().filter(|task| !task.kernel_thread) {
            if let Some(container) = task.container {
                pids.entry(container).or_insert(task.id.tgid);
            }
        }
        let containers = (0..)
            .zip(&observation.containers)
            .filter_map(|(at, container)| Some((container.id.clone(), own_network(root, *pids.get(&at)?)?)));
        let containers = containers.collect();
        Self { at: Instant::now(), host: read_host_network(root), containers }
    }

    /// What was transferred since an earlier reading.
    pub fn since(&self, before: &Self) -> NetworkRates {
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64();
        let rate = |old: &NetworkUse, new: &NetworkUse| {
            // A counter that ran backwards tells nothing.
            let grown = |old: Option<u64>, new: Option<u64>| Some(new?.checked_sub(old?)? as f64 / seconds);
            (seconds > 0.0).then_some(())?;
            Some(NetworkRate {
                received_per_s: grown(old.net_received_bytes, new.net_received_bytes)?,
                sent_per_s: grown(old.net_sent_bytes, new.net_sent_bytes)?,
            })
        };
        let containers = self.containers.iter().filter_map(|(id, (namespace, new))| {
            let (before, old) = before.containers.get(id)?;
            let rate = rate(old, new).filter(|_| before == namespace)?;
            Some((id.clone(), rate))
        });
        NetworkRates { host: rate(&before.host, &self.host), containers: containers.collect() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn used(received: u64, sent: u64) -> NetworkUse {
        NetworkUse {
            net_received_bytes: Some(received),
            net_sent_bytes: Some(sent),
            tcp_retransmits: Some(0),
        }
    }

    #[test]
    fn rates_are_of_one_namespace_and_of_counters_that_grow() {
        let at = Instant::now();
        let of = |at, host, containers: &[(&str, u64, NetworkUse)]| NetworkCounters {
            at,
            host,
            containers: containers.iter().map(|(id, ns, used)| ((*id).to_owned(), (*ns, *used))).collect(),
        };
        let unknown = NetworkUse::default();
        let before = of(
            at,
            used(100, 50),
            &[("web", 1, used(10, 20)), ("anew", 2, used(0, 0)), ("less", 3, used(9, 9))],
        );
        let after = of(
            at + Duration::from_secs(2),
            used(300, 50),
            &[
                ("web", 1, used(30, 24)),
                ("anew", 9, used(5, 5)),
                ("less", 3, used(1, 9)),
                ("new", 4, unknown),
            ],
        );
        let rates = after.since(&before);
        assert_eq!(rates.host, Some(NetworkRate { received_per_s: 100.0, sent_per_s: 0.0 }));
        let web = NetworkRate { received_per_s: 10.0, sent_per_s: 2.0 };
        assert_eq!(rates.containers, BTreeMap::from([("web".to_owned(), web)]));
        assert_eq!(after.since(&after), NetworkRates::default(), "no time has passed");
    }
}
