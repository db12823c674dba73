//! A certificate authority of the test's own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Pki {
    dir: tempfile::TempDir,
}

impl Pki {
    pub fn make() -> Self {
        let pki = Self { dir: tempfile::tempdir().unwrap() };
        pki.run(&["req", "-x509", "-subj", "/CN=test authority", "-out", "ca.crt", "-keyout", "ca.key"]);
        pki
    }

    fn run(&self, args: &[&str]) {
        let (kind, rest) = args.split_first().unwrap();
        let new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        let new = if *kind == "req" { &new[..] } else { &[] };
        let out = Command::new("openssl")
            .arg(kind)
            .args(new)
            .args(rest)
            .args(["-days", "2"])
            .current_dir(self.dir.path())
            .output()
            .expect("openssl must be installed for this test (Debian: apt-get install openssl)");
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn ca(&self) -> PathBuf {
        self.path("ca.crt")
    }

    /// `NAME.crt` and `NAME.key` for these names, such as `DNS:localhost,IP:127.0.0.1`.
    pub fn issue(&self, name: &str, names: &str) -> (PathBuf, PathBuf) {
        let [request, cert, key, ext] = ["csr", "crt", "key", "ext"].map(|end| format!("{name}.{end}"));
        std::fs::write(self.path(&ext), format!("subjectAltName={names}\n")).unwrap();
        self.run(&["req", "-subj", "/CN=evenkeel", "-out", &request, "-keyout", &key]);
        let sign = ["x509", "-req", "-in", &request, "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"];
        self.run(&[&sign[..], &["-extfile", &ext, "-out", &cert]].concat());
        (self.path(&cert), self.path(&key))
    }

    /// A file that its owner alone reads.
    pub fn secret(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
}

/// What curl takes from there: the status, and what it says on stderr.
pub fn curl(ca: &Path, url: &str, headers: &[&str]) -> (String, String) {
    let out = Command::new("curl")
        .args(["-sS", "--max-time", "20", "-w", "\n%{http_code}", "--cacert"])
        .arg(ca)
        .args(headers.iter().flat_map(|header| ["-H", header]))
        .arg(url)
        .output()
        .expect("curl must be installed for this test (Debian: apt-get install curl)");
    let (text, said) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    // Shown where the test fails, which may expect it.
    eprint!("{said}");
    (text.lines().last().unwrap_or_default().to_owned(), said.into_owned())
}
