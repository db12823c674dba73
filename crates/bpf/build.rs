//! Compiles every `bpf/NAME.bpf.c` with clang to `$OUT_DIR/NAME.bpf.o`, for the crate to embed. A published crate holds the objects
//! (`make crates` puts them there): who installs it from a registry needs no clang.
//!
//! `EVENKEEL_CLANG` names another clang; 12 is the oldest that knows all of CO-RE that is used.

use std::path::{Path, PathBuf};
use std::process::Command;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=EVENKEEL_CLANG");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for stem in programs()? {
        let object = out.join(&stem).with_extension("bpf.o");
        let shipped = Path::new("objects").join(&stem).with_extension("bpf.o");
        match shipped.exists() {
            true => drop(std::fs::copy(&shipped, &object)?),
            false => compile(Path::new("."), &stem, &object)?,
        }
    }
    Ok(())
}

/// The names in `bpf/NAME.bpf.c`.
pub(crate) fn programs() -> Result<Vec<String>, Error> {
    let names =
        std::fs::read_dir("bpf")?.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()));
    let names = names.collect::<std::io::Result<Vec<_>>>()?;
    Ok(names.iter().filter_map(|name| name.strip_suffix(".bpf.c").map(str::to_owned)).collect())
}

/// Compiles `bpf/STEM.bpf.c` below a directory. The object is the same wherever that is.
pub(crate) fn compile(dir: &Path, stem: &str, object: &Path) -> Result<(), Error> {
    let clang = std::env::var("EVENKEEL_CLANG").unwrap_or_else(|_| "clang".to_owned());
    // -g for the BTF that CO-RE works on; v3 instructions are known by every kernel since 5.1.
    let flags = ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror"];
    let status = Command::new(&clang)
        .current_dir(dir)
        .args(flags)
        .args(["-Wno-unused-variable", "-Wno-unused-function", "-Wno-unused-parameter"])
        .args(["-fdebug-compilation-dir=.", "-c", &format!("bpf/{stem}.bpf.c"), "-o"])
        .arg(object)
        .status()
        .map_err(|error| {
            format!("{clang} cannot be run ({error}): install it (Debian: apt-get install clang), or name one in EVENKEEL_CLANG")
        })?;
    if !status.success() {
        return Err(format!("{clang} could not compile bpf/{stem}.bpf.c: {status}").into());
    }
    Ok(())
}
