//! What tests of loads on the real kernel share.

use std::path::PathBuf;

/// The example of this crate that runs one load or one tenant (built along with the tests).
pub fn binary() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let binary = tests.parent().unwrap().parent().unwrap().join("examples/load");
    assert!(binary.exists(), "{} is missing: run `cargo build --examples` first", binary.display());
    binary
}
