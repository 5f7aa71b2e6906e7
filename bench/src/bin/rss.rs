//! Memory per held lock: takes many locks and looks at what the server's
//! resident memory grew by.

use std::error::Error;
use std::net::SocketAddr;

use clap::Parser;
use leasehold_bench::hold::{Target, hold_locks};
use leasehold_bench::host::resident_bytes;

/// Resident bytes per held lock with a 16-byte key, over the server as it is now.
#[derive(Debug, Parser)]
struct Flags {
    /// Address of the server, which should hold nothing yet.
    #[arg(long)]
    server: SocketAddr,
    /// The server's process.
    #[arg(long)]
    server_pid: u32,
    /// What listens there.
    #[arg(long, value_enum, default_value_t = Target::Native)]
    target: Target,
    /// Locks to take.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    locks: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    let before = resident_bytes(flags.server_pid)?;
    let _connection = hold_locks(flags.server, flags.target, flags.locks)?;
    let after = resident_bytes(flags.server_pid)?;
    let per_lock = after.saturating_sub(before) as f64 / flags.locks as f64;
    println!("empty_bytes={before} held_bytes={after} bytes_per_lock={per_lock:.1}");
    Ok(())
}
