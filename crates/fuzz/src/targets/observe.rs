//! Whose a cgroup is, and what container runtimes answer.

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
    Target::text("sched-attributes", fuzzing::sched),
    Target::text("machine", fuzzing::machine),
];
