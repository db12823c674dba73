//! What the program and its pages parse by themselves.

use evenkeel::fuzzing;
use evenkeel_listen::fuzzing as listen;

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::text("config", fuzzing::config).samples(&["examples/evenkeel.toml"]).heavy(10),
    Target::text("duration", fuzzing::duration),
    Target::text("prices", fuzzing::prices),
    Target::text("account", fuzzing::account),
    Target::text("host-header", listen::host_header),
    Target::text("authorization", listen::authorization),
    Target::text("query", listen::query),
    Target::bytes("mcp", fuzzing::mcp),
    Target::text("fleet-page", fuzzing::fleet_page),
    Target::text("fleet-answer", fuzzing::fleet_answer),
    Target::text("options", fuzzing::options),
];
