//! The `qcast` command.
fn main() {}
