//! What the program parses by itself.

use evenkeel::fuzzing;

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::text("config", fuzzing::config).samples(&["examples/evenkeel.toml"]).heavy(10),
    Target::text("duration", fuzzing::duration),
    Target::text("prices", fuzzing::prices),
    Target::text("account", fuzzing::account),
    Target::text("host-header", fuzzing::host_header),
    Target::text("authorization", fuzzing::authorization),
    Target::bytes("mcp", fuzzing::mcp),
    Target::text("fleet-page", fuzzing::fleet_page),
    Target::text("fleet-answer", fuzzing::fleet_answer),
    Target::text("options", fuzzing::options),
];
