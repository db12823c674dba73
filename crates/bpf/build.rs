//! Compiles every `bpf/NAME.bpf.c` with clang to `$OUT_DIR/NAME.bpf.o`, for the crate to embed.
//!
//! `EVENKEEL_CLANG` names another clang; 12 is the oldest that knows all of CO-RE that is used.

use std::path::{Path, PathBuf};
use std::process::Command;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=EVENKEEL_CLANG");
    let clang = std::env::var("EVENKEEL_CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for entry in std::fs::read_dir("bpf")? {
        let source = entry?.path();
        let name = source.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(stem) = name.strip_suffix(".bpf.c") {
            compile(&clang, &source, &out.join(format!("{stem}.bpf.o")))?;
        }
    }
    Ok(())
}

fn compile(clang: &str, source: &Path, object: &Path) -> Result<(), Error> {
    // -g for the BTF that CO-RE works on; v3 instructions are known by every kernel since 5.1.
    let flags = ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror"];
    let status = Command::new(clang)
        .args(flags)
        .args(["-Wno-unused-variable", "-Wno-unused-function", "-Wno-unused-parameter", "-c"])
        .arg(source)
        .arg("-o")
        .arg(object)
        .status()
        .map_err(|error| {
            format!("{clang} cannot be run ({error}): install it (Debian: apt-get install clang), or name one in EVENKEEL_CLANG")
        })?;
    if !status.success() {
        return Err(format!("{clang} could not compile {}: {status}", source.display()).into());
    }
    Ok(())
}
