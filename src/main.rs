//! The `qcast` command. All of it is in [`cli`]; the library does the work.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
