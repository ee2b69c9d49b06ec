//! The queue pair table and validator against an independent statement of the same facts.

mod exhaustive;
mod paths;
mod prechecks;
mod property;
mod reference;
mod vectors;
