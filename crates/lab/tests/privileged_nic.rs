//! Cards of machines on the real kernel, without machines: macvtap, and links that stand in for virtual functions.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use evenkeel_lab::net::iproute::ip;
use evenkeel_lab::net::namespace::Namespace;
use evenkeel_lab::net::wiring::{Nic, SENDER, UPLINK, Wiring, tenant_address};
use evenkeel_lab::vm::nic::{mac, macvtap};
use evenkeel_linux::testing::made_by;

fn links_of(namespace: &Namespace) -> String {
    namespace.run(|| fs::read_to_string("/proc/thread-self/net/dev")).unwrap()
}

#[test]
fn a_macvtap_is_opened_in_its_namespace_and_goes_with_it() {
    let wiring = Wiring::build(Nic::Macvlan, 0).unwrap();
    let address = mac(tenant_address(0));
    assert_eq!(address, "52:54:00:77:01:01");
    let opened = macvtap(&wiring.switch, UPLINK, "bridge", "t0", &address).unwrap();
    // A second of the same parent, and of one that is not there.
    let second = macvtap(&wiring.switch, UPLINK, "bridge", "t1", &mac(tenant_address(1))).unwrap();
    let error = macvtap(&wiring.switch, "no", "bridge", "t2", &address).unwrap_err().to_string();
    assert!(error.contains("ip link add link no name t2"), "{error}");
    assert!(links_of(&wiring.switch).contains("t1:"));
    drop((opened, second));
    assert!(!fs::read_to_string("/proc/net/dev").unwrap().contains(" t0:"), "it is in the host's namespace");
    assert_eq!(made_by("lab", std::process::id()), Vec::<PathBuf>::new(), "a device node is left in /dev");
}

/// Links of the host, deleted on drop where they still are.
struct HostLinks(Vec<String>);

impl Drop for HostLinks {
    fn drop(&mut self) {
        for link in &self.0 {
            let _ = Command::new("ip").args(["link", "delete", "dev", link]).output();
        }
    }
}

/// A bridge in a namespace of its own plays the switch inside a card; veth pairs to it play the card's functions.
#[test]
fn links_of_a_card_become_a_sender_and_cards_of_machines() {
    let card = Namespace::make("card").unwrap();
    ip(&card, "link add name br0 type bridge forward_delay 0\nlink set dev br0 up\n").unwrap();
    let names: Vec<String> = (0..2).map(|i| format!("ekv{}-{i}", std::process::id() % 100_000)).collect();
    let links = HostLinks(names.clone());
    for (i, name) in names.iter().enumerate() {
        use std::os::fd::AsRawFd;
        let made = Command::new("ip")
            .args(["link", "add", "name", name, "type", "veth", "peer", "name", &format!("p{i}"), "netns"])
            .arg(format!("/proc/{}/fd/{}", std::process::id(), card.fd().as_raw_fd()))
            .status();
        assert!(made.unwrap().success());
        ip(&card, &format!("link set dev p{i} master br0 up\n")).unwrap();
    }
    let wiring = Wiring::of_links(&names).unwrap();
    assert!(links_of(&wiring.sender).contains(&names[0]) && links_of(&wiring.switch).contains(&names[1]));
    assert!(!fs::read_to_string("/proc/net/dev").unwrap().contains(&names[0]));
    // The sender reaches what is on the other function.
    let to = tenant_address(0);
    ip(&wiring.switch, &format!("address add {to}/16 dev {}\n", names[1])).unwrap();
    let listener = wiring.switch.run(|| std::net::TcpListener::bind((to, 7421))).unwrap();
    let until = std::time::Duration::from_secs(20);
    let flow = wiring.sender.run(|| evenkeel_workload::flow::connect((to, 7421).into(), until)).unwrap();
    assert_eq!(listener.accept().unwrap().1.ip(), SENDER);
    drop(flow);
    let opened = macvtap(&wiring.switch, &names[1], "passthru", "t0", &mac(to)).unwrap();
    drop((opened, wiring, links));

    let error = Wiring::of_links(&["no-such-link".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("no-such-link"), "{error}");
    assert!(Wiring::of_links(&[]).is_err());
}
