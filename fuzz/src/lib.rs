//! The fuzz targets' bodies. `tests/fuzz_bodies.rs` of the root crate runs the same ones in `make test`.

pub mod bodies;
