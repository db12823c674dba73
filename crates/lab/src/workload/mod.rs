//! The built-in workloads of `evenkeel load KIND`. A new one is a file here and a line in `kinds!` below.

use std::fmt::Debug;

use crate::load::{Context, LoadError};

pub mod duty;
pub mod spin;

/// A workload: parameters, and what each of its threads does.
pub trait Workload: Debug + Send + Sync {
    /// Checks what the command line's syntax cannot; the message says what to do.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// CPU time one thread wants, percent of one CPU; `None` where it takes what it gets.
    fn wanted_pct(&self) -> Option<f64> {
        None
    }

    /// Prepares what all threads share, before any of them starts.
    fn prepare(&mut self, _threads: u32) -> Result<(), LoadError> {
        Ok(())
    }

    /// Runs one thread until [`Context::over`]. Counts its events in the context.
    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError>;

    /// The command-line arguments, kind first, that give these parameters again.
    fn arguments(&self) -> Vec<String>;
}

/// The list of kinds: one line registers a workload for the command line, for specs and for tenants.
macro_rules! kinds {
    ($($(#[$about:meta])* $name:ident($params:ty),)*) => {
        /// What a load does.
        #[derive(Debug, Clone, PartialEq, clap::Subcommand, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "workload", rename_all = "lowercase")]
        pub enum Kind {
            $($(#[$about])* $name($params),)*
        }

        impl Kind {
            /// The workload itself.
            pub fn workload(&self) -> &dyn Workload {
                match self { $(Self::$name(params) => params,)* }
            }

            /// The workload itself, to be prepared.
            pub fn workload_mut(&mut self) -> &mut dyn Workload {
                match self { $(Self::$name(params) => params,)* }
            }

            /// Its name on the command line.
            pub fn name(&self) -> String {
                match self { $(Self::$name(_) => stringify!($name).to_lowercase(),)* }
            }
        }
    };
}

kinds! {
    /// A share of one CPU, in periods: computes, sleeps, computes.
    Duty(duty::Duty),
    /// Takes all the CPU time it is given.
    Spin(spin::Spin),
}
