//! The targets: one file for each crate's parsers. A new one is a line in a file's `TARGETS`, or a file and a line here.

mod actuate;
mod agent;
mod amount;
mod audit;
mod base;
mod evenkeel;
mod exec;
mod experiment;
mod fetch;
mod lab;
mod linux;
mod model;
mod observe;
mod policy;
mod store;
mod tune;
mod workload;

use crate::Target;

pub const ALL: &[&[Target]] = &[
    actuate::TARGETS,
    agent::TARGETS,
    audit::TARGETS,
    base::TARGETS,
    evenkeel::TARGETS,
    exec::TARGETS,
    experiment::TARGETS,
    fetch::TARGETS,
    lab::TARGETS,
    linux::TARGETS,
    model::TARGETS,
    observe::TARGETS,
    policy::TARGETS,
    store::TARGETS,
    tune::TARGETS,
    workload::TARGETS,
];

/// Every target, in the order of [`ALL`].
pub fn all() -> impl Iterator<Item = &'static Target> {
    ALL.iter().copied().flatten()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_unique_and_fit_a_folder() {
        let mut names: Vec<_> = super::all().map(|target| target.name).collect();
        assert!(names.iter().all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
