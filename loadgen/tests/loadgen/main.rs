//! The load generator as people and scripts run it: against the server, and against
//! servers that are wrong.

mod command_line;
mod common;
mod liars;
mod restart;
mod workloads;
