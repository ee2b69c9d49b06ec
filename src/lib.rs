//! qcast: reliable publish/subscribe over RDMA unreliable datagrams.
#![deny(unsafe_code)]

pub mod device;
