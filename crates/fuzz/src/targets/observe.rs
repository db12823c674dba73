//! Whose a cgroup is, and what container runtimes answer.

use evenkeel_observe::flight::{Recording, account, trace};
use evenkeel_observe::fuzzing;
use evenkeel_observe::ownership::classify;
use evenkeel_observe::runtimes::{RuntimeFacts, decode_cri, decode_docker};

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::text("owner", |text| {
        let owner = classify(text);
        assert!(owner.container.is_none_or(|container| text.starts_with(&container.path)));
        assert!(owner.pod.is_none_or(|pod| text.starts_with(&pod.path)));
    }),
    Target::text("runtimes-file", |text| {
        let _ = serde_json::from_str::<RuntimeFacts>(text);
    }),
    Target::bytes("docker", |body| {
        if let Some(facts) = decode_docker(body) {
            assert!(facts.pods.len() <= facts.containers.len());
        }
    }),
    Target::bytes("cri", |bytes| {
        // The first two bytes say where the second answer begins.
        let (first, rest) = bytes.split_at_checked(2).unwrap_or((&[0, 0], bytes));
        let at = usize::from(u16::from_be_bytes([first[0], first[1]]));
        let (sandboxes, containers) = rest.split_at(at.min(rest.len()));
        if let Some(facts) = decode_cri(sandboxes, containers) {
            let is_known = |pod: &String| facts.pods.contains_key(pod);
            assert!(facts.containers.values().filter_map(|facts| facts.pod.as_ref()).all(is_known));
        }
    }),
    Target::bytes("recording", |bytes| {
        let Ok(recording) = Recording::read(bytes) else { return };
        let interval = recording.interval_ns();
        let length = u128::from(interval.1 - interval.0);
        let threads = recording.threads();
        let all = account(&recording, &threads, interval, |_| true);
        // Each thread known is at one place at a time.
        let most = threads.all().count() as u128 * length;
        assert!(u128::from(all.ran_ns) + u128::from(all.waited_ns) <= most);
        trace(&recording, &mut std::io::sink()).unwrap_or_default();
    }),
    Target::text("sched-attributes", fuzzing::sched),
    Target::text("machine", fuzzing::machine),
];
