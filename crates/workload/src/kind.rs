//! The list of kinds.

use crate::workload::Workload;

/// The list of kinds: one line registers a workload for the command line, for specs and for tenants.
macro_rules! kinds {
    ($($(#[$about:meta])* $name:ident($module:ident::$params:ident),)*) => {
        /// What a load does.
        #[derive(Debug, Clone, PartialEq, clap::Subcommand, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "workload", rename_all = "lowercase")]
        pub enum Kind {
            $($(#[$about])* $name(crate::$module::$params),)*
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
    /// Counts primes by trial division: the events of `sysbench cpu`.
    Primes(primes::Primes),
    /// Tests numbers from one shared counter, with or without a read() in each step.
    Sieve(sieve::Sieve),
    /// Solves linear equations in floating point, as linpack does.
    Flops(flops::Flops),
    /// Moves memory (the STREAM triad), or a stream of bytes over TCP.
    Stream(stream::Stream),
    /// One-byte requests and responses over TCP: server or client.
    Rr(rr::Rr),
    /// Is woken again and again, and measures how late it runs (the figures of schbench).
    Wakeup(wakeup::Wakeup),
    /// Asks a service at instants set beforehand, and measures its answers from those (an open loop).
    Ask(ask::Ask),
    /// Does nothing.
    Idle(idle::Idle),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duty;
    use crate::load::{Common, LoadSpec, StartAt};
    use clap::Parser;
    use proptest::prelude::*;
    use std::time::Duration;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(subcommand)]
        kind: Kind,
        #[command(flatten)]
        common: Common,
    }

    fn parse(arguments: &[String]) -> Result<LoadSpec, clap::Error> {
        let arguments = std::iter::once("load").chain(arguments.iter().map(String::as_str));
        Cli::try_parse_from(arguments).map(|cli| LoadSpec { kind: cli.kind, common: cli.common })
    }

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(Into::into).collect()
    }

    /// The arguments given, and the document, give back the same spec.
    fn survives(spec: &LoadSpec) {
        assert_eq!(parse(&spec.arguments()).unwrap(), *spec);
        let json = serde_json::to_string(spec).unwrap();
        assert_eq!(serde_json::from_str::<LoadSpec>(&json).unwrap(), *spec, "{json}");
    }

    #[test]
    fn every_kind_survives_being_passed_on() {
        for line in [
            "duty --percent 20",
            "duty --percent 12.5 --period 1s --jitter 0 --kind open --seed 9 --seconds 2",
            "spin --threads 3",
            "primes --max-prime 500 --events 3",
            "sieve --from 5 --to 9 --read same --shared-fd --dir /x",
            "sieve --read own --pread",
            "flops --size 10",
            "stream --memory 3",
            "stream --connect 10.0.0.1:99",
            "stream --listen [::1]:99",
            "rr server --address [::1]:99",
            "rr client --flows 7 --start-at @5.25",
            "wakeup",
            "wakeup --period 2ms --percent 5 --jitter 0 --seed 4 --threads 3",
            "ask --address /run/x.sock --request GET\\r\\n",
            "ask --address 127.0.0.1:80 --period 100us --jitter 10 --seed 2 --request x",
            "idle --name x",
        ] {
            survives(&parse(&words(line)).unwrap());
        }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for line in [
            "duty",
            "duty --percent x",
            "duty --percent 5 --kind sometimes",
            "duty --percent 5 --period 3",
            "spin --seconds 0",
            "spin --seconds -1",
            "spin --seconds nan",
            "spin --events 0",
            "spin --threads 0",
            "spin --start-at noon",
            "spin --slot 1",
            "rr",
            "primes --max-prime 1",
            "ask --address x",
            "wakeup --period 3",
            "stream --listen [::1]:99 --connect [::1]:99",
            "whatever",
        ] {
            assert!(parse(&words(line)).is_err(), "{line} was accepted");
        }
    }

    proptest! {
        #[test]
        fn duty_specs_survive_being_passed_on(
            percent in 0.01f64..100.0,
            period_us in 100u64..1_000_000_000,
            jitter in 0.0f64..100.0,
            kind in proptest::sample::select(vec![duty::DutyKind::Wall, duty::DutyKind::Closed, duty::DutyKind::Open]),
            seed in any::<u64>(),
            seconds in proptest::option::of(0.001f64..1e6),
            threads in proptest::option::of(1u32..99),
            start in proptest::option::of(any::<u64>()),
        ) {
            let period = Duration::from_micros(period_us);
            let mut spec = LoadSpec::new(Kind::Duty(duty::Duty { percent, period, jitter, kind, seed }));
            spec.common.seconds = seconds;
            spec.common.threads = threads;
            spec.common.start_at = start.map(StartAt);
            prop_assert_eq!(parse(&spec.arguments()).unwrap(), spec);
        }
    }
}
