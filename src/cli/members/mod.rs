//! `qcast members`: who is in a group, once or as it changes.

mod board;
mod draw;
mod row;
