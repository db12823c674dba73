//! Generates what `proto` describes without `protoc`: the CRI client, the server the tests play a runtime with, and the
//! messages of a Perfetto trace.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/cri.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for (name, server) in [("cri_client", false), ("cri_server", true)] {
        let dir = out.join(name);
        std::fs::create_dir_all(&dir)?;
        tonic_prost_build::configure()
            .build_client(!server)
            .build_server(server)
            .build_transport(false)
            .out_dir(&dir)
            .compile_fds(descriptors.clone())?;
    }
    tonic_prost_build::configure().compile_fds(protox::compile(["proto/perfetto.proto"], ["proto"])?)?;
    Ok(())
}
