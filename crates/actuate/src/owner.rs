//! Cgroups that somebody manages: Docker's containers and systemd's units are changed through their own interface, so
//! that the owner knows and does not write over it.

use evenkeel_base::{GroupRef, Knob, Setting};

/// Runs a program and waits for it; `Err` is what it said. Replaced in tests.
pub trait Run: Send {
    /// Whether the program is there.
    fn has(&self, program: &str) -> bool;

    /// Runs it.
    ///
    /// # Errors
    /// What it said when it failed.
    fn run(&self, program: &str, args: &[String]) -> Result<(), String>;
}

/// Programs of the host.
#[derive(Debug, Clone, Copy)]
pub struct RunProgram;

impl Run for RunProgram {
    fn has(&self, _program: &str) -> bool {
        false
    }

    fn run(&self, _program: &str, _args: &[String]) -> Result<(), String> {
        Err("not run".to_owned())
    }
}

/// The owners present on this host.
pub(crate) struct Owners {
    #[allow(dead_code)]
    run: Box<dyn Run>,
}

impl Owners {
    pub fn find(run: Box<dyn Run>) -> Self {
        Self { run }
    }

    pub fn write(&self, _group: &GroupRef, _to: &Setting) -> Option<Result<(), String>> {
        None
    }

    pub fn remembers(&self, _group: &GroupRef, _knob: Knob) -> bool {
        false
    }
}
