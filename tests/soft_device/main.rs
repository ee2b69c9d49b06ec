//! The software provider, by its outside: two and more devices of one process, and hand-made datagrams.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod delivery;
mod hand_made;
mod limits;
mod netns;
mod opening;
mod rig;
mod states;
