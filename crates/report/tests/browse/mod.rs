//! A page in a real browser.

use std::path::Path;
use std::process::Command;

/// Renders a page in headless chromium (Debian: `apt-get install chromium`); gives the document after its scripts
/// ran and what the console said.
pub fn browse(page: &Path) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--disable-dev-shm-usage", "--enable-logging=stderr", "--v=0", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("chromium must be installed for this test (Debian: apt-get install chromium)");
    let console = String::from_utf8_lossy(&output.stderr)
        .lines()
        .filter(|l| l.contains("CONSOLE"))
        .collect::<Vec<_>>()
        .join("\n");
    (String::from_utf8_lossy(&output.stdout).into_owned(), console)
}
