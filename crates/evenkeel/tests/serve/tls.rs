//! Who asks over TLS, and who does something else.

use std::io::{Read, Write};
use std::net::TcpStream;

use evenkeel_linux::testing::awaited;

use super::agent::{Serve, until_well};
use super::pki::{Pki, curl};
use super::program::{end, evenkeel};

const TOKEN: &str = "0123456789abcdefghijklmnopqrstuv";
/// Handshakes that hang at a time; more than there are connections.
const HANGING: usize = 100;
/// What a process with 32 connections has open at most.
const DESCRIPTORS: usize = 100;

/// What one gets that sends these bytes.
fn sent(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut got = Vec::new();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.read_to_end(&mut got);
    String::from_utf8_lossy(&got).into_owned()
}

pub fn other_hosts_are_answered_with_token_and_certificate() {
    let pki = Pki::make();
    let (cert, key) = pki.issue("one", "DNS:localhost,DNS:node1.example,IP:127.0.0.1");
    let token = pki.secret("token", TOKEN);
    let [cert_arg, key_arg, token_arg] = [&cert, &key, &token].map(|path| path.to_str().unwrap());
    // One without the other opens nothing.
    for options in [&[][..], &["--token-file", token_arg], &["--tls-cert", cert_arg, "--tls-key", key_arg]] {
        for command in ["serve", "run"] {
            let args = [&[command, "--listen", "0.0.0.0:0"], options].concat();
            let said = end(evenkeel(["--state-dir"]).arg(pki.path("")).args(args)).refused(2, "127.0.0.1");
            assert_eq!(said.contains("add --token-file"), !options.contains(&token_arg), "{said}");
            assert_eq!(said.contains("--tls-cert FILE"), !options.contains(&cert_arg), "{said}");
        }
    }
    // Certificate and key by the configuration, as the packages do it.
    let config = pki.path("config.toml");
    std::fs::write(&config, format!("[serve]\ntls_cert = {cert:?}\ntls_key = {key:?}\n")).unwrap();
    let options = ["--no-history", "--token-file", token_arg, "--config", config.to_str().unwrap()];
    let serve = Serve::start_at("0.0.0.0:0", &options);
    let port = serve.address.rsplit(':').next().unwrap();
    let (address, url) = (format!("127.0.0.1:{port}"), format!("https://127.0.0.1:{port}"));
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let wrong = format!("Authorization: Bearer {}", TOKEN.replace('v', "w"));
    let status = |path: &str, headers: &[&str]| curl(&pki.ca(), &format!("{url}{path}"), headers).0;
    // Those who begin and do not go on hold nobody up.
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc];
    let hanging: Vec<TcpStream> = (0..HANGING)
        .map(|at| {
            let mut stream = TcpStream::connect(&address).unwrap();
            let _ = stream.write_all(&hello[..at % (hello.len() + 1)]);
            stream
        })
        .collect();
    assert_eq!(status("/metrics", &[&bearer]), "200");
    let open = std::fs::read_dir(format!("/proc/{}/fd", serve.process.0.id())).unwrap().count();
    assert!(open < DESCRIPTORS, "{open} descriptors are open");
    drop(hanging);
    assert_eq!((status("/metrics", &[]), status("/metrics", &[&wrong])), ("401".into(), "401".into()));
    assert_eq!(status("/", &[&bearer]), "200");
    until_well(|| status("/healthz", &[]));
    // A page elsewhere that points its name here gets nothing; a name of the certificate is one of ours.
    let by_name = |name: &str| status("/metrics", &[&bearer, &format!("Host: {name}:{port}")]);
    assert_eq!(by_name("evil.example"), "421");
    assert_eq!(by_name("node1.example.evil.example"), "421");
    assert_eq!((by_name("node1.example"), by_name("localhost")), ("200".into(), "200".into()));
    let plain = sent(&address, format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{bearer}\r\n\r\n").as_bytes());
    assert!(plain.starts_with("HTTP/1.1 400") && plain.contains("https") && !plain.contains("evenkeel_"));
    for garbage in [&[0_u8; 300][..], &[0xff; 300], &[0x16; 300], &[0x16, 3, 1, 0xff, 0xff, 1], b"\r\n\r\n"] {
        let got = sent(&address, garbage);
        assert!(!got.contains("evenkeel_") && !got.contains("200"), "{got}");
    }
    read_by_fleet(&pki, &serve, &url);
    by_both_protocols(&pki, &options);
    replaced(&pki, &serve, &url);
}

/// Our own client believes the right authority alone, and in the address that the certificate names.
fn read_by_fleet(pki: &Pki, serve: &Serve, url: &str) {
    let stranger = Pki::make();
    let fleet = |ca: &Pki, url: &str, more: &[&str]| {
        let mut command = evenkeel(["fleet", url, "--token-file"]);
        end(command.arg(pki.path("token")).arg("--ca-file").arg(ca.ca()).args(more))
    };
    awaited(60, || match fleet(pki, url, &[]) {
        ended if ended.status == Some(0) => Ok(()),
        ended => Err(format!("{ended} {}", serve.said())),
    });
    let elsewhere = url.replace("127.0.0.1", "127.0.0.2");
    let [named, misnamed] = ["node1.example", "node2.example"].map(|name| ["--server-name", name]);
    for (ca, url, more) in [
        (&stranger, url, &[][..]),
        (pki, &elsewhere, &[]),
        (pki, url, &misnamed),
        (&stranger, &elsewhere, &named),
    ] {
        let ended = fleet(ca, url, more).with(3);
        assert!((ended.stdout + &ended.stderr).contains("invalid peer certificate"));
    }
    // An address that is not in the certificate, asked for a name that is.
    fleet(pki, &elsewhere, &named).with(0);
    fleet(pki, url, &["--server-name", "no name"]).says(2, "no certificate can be for");
    fleet(pki, "http://127.0.0.1:1", &named).says(2, "nobody is asked by https");
}

/// `[::]` is every address of a host that has IPv6.
fn by_both_protocols(pki: &Pki, options: &[&str]) {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this host has no IPv6");
        return;
    }
    let serve = Serve::start_at("[::]:0", options);
    let port = serve.address.rsplit(':').next().unwrap();
    for address in ["[::1]", "127.0.0.1"] {
        let url = format!("https://{address}:{port}/metrics");
        awaited(60, || {
            let mut command = evenkeel(["fleet", &url, "--server-name", "localhost", "--token-file"]);
            match end(command.arg(pki.path("token")).arg("--ca-file").arg(pki.ca())) {
                ended if ended.status == Some(0) => Ok(()),
                ended => Err(format!("{ended} {}", serve.said())),
            }
        });
    }
}

/// A new certificate is used without a start, and a bad one is not.
fn replaced(pki: &Pki, serve: &Serve, url: &str) {
    let wait_for = |what: &str| {
        awaited(60, || match serve.said() {
            said if said.contains(what) => Ok(()),
            said => Err(format!("never {what}: {said}")),
        });
    };
    let served = || {
        let url = url.replace("127.0.0.1", "127.0.0.2");
        curl(&pki.ca(), &format!("{url}/healthz"), &[]).0
    };
    assert_ne!(served(), "200", "the certificate is not for this address");
    let (cert, key) = pki.issue("two", "IP:127.0.0.2");
    for (new, name) in [(&key, "one.key"), (&cert, "one.crt")] {
        std::fs::rename(new, pki.path(name)).unwrap();
    }
    wait_for("the new certificate of");
    assert_eq!(served(), "200");
    // Half a file.
    std::fs::write(pki.path("one.crt"), "-----BEGIN CERTIFICATE-----\nMIIB").unwrap();
    wait_for("the new certificate is not used");
    assert_eq!(served(), "200");
}
