//! The `evenkeel` binary.

fn main() -> std::process::ExitCode {
    evenkeel::main()
}
