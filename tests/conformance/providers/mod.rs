//! One module for each provider: how its devices are opened, and that they run the suite.

mod fault;
mod sim;
#[cfg(target_os = "linux")]
mod soft;
#[cfg(all(target_os = "linux", feature = "verbs"))]
mod verbs;
#[cfg(target_os = "linux")]
mod watch;
