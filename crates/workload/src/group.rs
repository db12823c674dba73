//! `group`: several loads as children of one process, for a container that is to hold many. It ends when all of them
//! have; its own account does not include them.

use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::Workload;
use crate::burn::monotonic_ns;
use crate::load::{Context, LoadError};
use evenkeel_linux::children::bind;

/// Parameters.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Group {
    /// Arguments of one load, as a JSON list; repeat.
    #[arg(long, value_name = "JSON")]
    pub member: Vec<String>,
}

impl Group {
    fn members(&self) -> Result<Vec<Vec<String>>, String> {
        let parse = |json: &String| serde_json::from_str(json).map_err(|e| format!("--member {json}: {e}"));
        self.member.iter().map(parse).collect()
    }
}

/// Ends the children however the load ends.
struct Children(Vec<Child>);

impl Children {
    /// Reaps those that have ended; whether any is left.
    fn any_left(&mut self) -> bool {
        self.0.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_)) | Err(_)));
        !self.0.is_empty()
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Workload for Group {
    fn check(&self) -> Result<(), String> {
        self.members().map(|_| ())
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        let binary = std::env::current_exe().map_err(|e| LoadError::system("own path", e))?;
        let mut children = Children(Vec::new());
        for arguments in self.members().map_err(LoadError::Parameters)? {
            let mut command = Command::new(&binary);
            command.arg("load").args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
            bind(&mut command, libc::SIGTERM);
            let child = command
                .spawn()
                .map_err(|e| LoadError::system(format!("cannot start {}", binary.display()), e))?;
            children.0.push(child);
        }
        while children.any_left() && !context.over() {
            context.sleep(monotonic_ns() + 200_000_000);
        }
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        let members = self.member.iter().map(|json| format!("--member={json}"));
        std::iter::once("group".into()).chain(members).collect()
    }
}
