//! A container with a network of its own.

use std::process::{Command, Stdio};

use super::agent::BINARY;
use super::culprits::pod;
use evenkeel_linux::testing::{TestChild, awaited};

/// Sends as fast as it can, into the void of its own namespace.
const SENDER: &str = "ip link add e0 type veth peer name e1 && ip addr add 10.0.0.1/24 dev e0 && ip link set e0 up && ip link set e1 up \
     && ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:01 dev e0 \
     && while :; do echo 123456789 > /dev/udp/10.0.0.2/9; done";

pub fn a_network_of_its_own_has_rates_in_the_tree() {
    let (_, own) = pod("evenkeel-network", '5');
    let (_, hosts) = pod("evenkeel-no-network", '6');
    let shell = |command: &mut Command| TestChild(command.stdout(Stdio::null()).spawn().unwrap());
    let sender = shell(Command::new("unshare").args(["--net", "bash", "-c", SENDER]));
    own[0].add(sender.0.id()).unwrap();
    let idle = shell(Command::new("sleep").arg("300"));
    hosts[0].add(idle.0.id()).unwrap();
    awaited(60, || {
        let shown = Command::new(BINARY).args(["ps", "--by", "container", "--all"]).output().unwrap();
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.status.success(), "{text}");
        let line = |digit: char| {
            let line = text.lines().find(|line| line.starts_with(&digit.to_string().repeat(12)));
            line.unwrap_or_default().to_owned()
        };
        let sent = |line: &str| {
            let (_, sent) = line.split_whitespace().filter_map(|cell| cell.split_once('/')).next()?;
            Some(sent != "0")
        };
        // The shell may not have made its interface yet, and is seen under its first name.
        let told = text.contains(", network in/out ") && sent(&line('5')) == Some(true);
        if told && !line('6').is_empty() {
            assert!(text.contains("NET IN/OUT"), "{text}");
            assert_eq!(sent(&line('6')), None, "it is in the host's network: {text}");
            return Ok(());
        }
        Err(text)
    });
}
