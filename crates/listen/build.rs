//! Generates the messages that `proto` describes without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["proto/prometheus.proto", "proto/otlp.proto"];
    tonic_prost_build::configure().compile_fds(protox::compile(files, ["proto"])?)?;
    Ok(())
}
