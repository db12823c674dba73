use super::*;
use evenkeel_base::NetKnob;

fn rps(link: &str) -> NetKnob {
    NetKnob::RpsCpus { link: link.into(), queue: 0 }
}

#[test]
fn values_are_brought_to_one_form_or_refused() {
    assert_eq!(normal(&rps("eth0"), " 0-1,3\n").unwrap(), "0-1,3");
    assert_eq!(normal(&NetKnob::SockFlowEntries, "30000").unwrap(), "32768");
    assert_eq!(normal(&NetKnob::SockFlowEntries, "0").unwrap(), "0");
    assert!(normal(&NetKnob::SockFlowEntries, "-1").is_err());
    assert!(normal(&NetKnob::IrqAffinity { irq: 1 }, "").is_err());
    let qdisc = |link: &str| NetKnob::RootQdisc { link: link.into() };
    assert!(normal(&qdisc("eth0"), "htb ee01:").is_ok() && normal(&qdisc("eth0"), "htb 1:").is_err());
    assert!(normal(&qdisc("../x"), "default").is_err());
    assert!(cannot_be_put_back(&qdisc("eth0"), "htb 1:").unwrap().contains("left alone"));
}

#[test]
fn files_are_read_and_written_in_the_kernels_form() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("sys/class/net/eth0");
    let queue = link.join("queues/rx-0");
    let text = [("queues/rx-0/rps_cpus", "00000000,00000003\n"), ("ifindex", "2\n")];
    evenkeel_linux::testing::lay(&link, &text);
    let files = Files::at(dir.path());
    assert_eq!(files.read(&rps("eth0")).unwrap(), "0-1");
    files.write(&rps("eth0"), "33").unwrap();
    assert_eq!(std::fs::read_to_string(queue.join("rps_cpus")).unwrap().lines().next(), Some("2,00000000"));
    assert_eq!(files.identity(&rps("eth0")), Ok(2));
    assert_eq!(files.queues("eth0"), Ok(Queues { receive: vec![0], transmit: vec![] }));
    assert!(matches!(files.identity(&rps("eth9")), Err(HostError::Gone(_))));
    assert!(matches!(files.queues("eth9"), Err(HostError::Gone(_))));
    assert_eq!(files.links(), ["eth0"]);
    // By another name it is the same link.
    std::fs::rename(&link, dir.path().join("sys/class/net/lan0")).unwrap();
    assert_eq!(files.renamed(&rps("eth0"), 2), Some(rps("lan0")));
    assert_eq!(files.renamed(&rps("eth0"), 3), None);
}
