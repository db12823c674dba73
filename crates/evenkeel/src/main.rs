//! The `evenkeel` binary: one file a command under `cli`.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
