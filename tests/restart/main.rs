//! What survives a restart, with real processes that are killed, ended and started
//! again on one state directory.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "a failed step fails its test; nothing here is an interface"
)]

#[expect(
    unused,
    reason = "the harness serves every test over sockets; this one leaves some of it to others"
)]
#[path = "../common/mod.rs"]
mod common;
#[expect(unused, reason = "the other protocol's tests need more of it")]
#[path = "../dlm/exchange.rs"]
mod exchange;

mod directories;
mod grace;
mod kills;
mod leases;

use std::time::{Duration, Instant};

use rustix::process::Signal;

use common::client::Client;
use common::configuration::Configuration;
use common::server::{Server, serve_command};
use common::wire::{Reply, acquire, acquire_ms};

/// A server for both protocols on free ports, with this state directory.
fn start(configuration: Configuration, state: &str, flags: &[&str]) -> Server {
    let mut command = serve_command();
    command
        .args(["--listen", "127.0.0.1:0", "--dlm-listen", "127.0.0.1:0"])
        .args(configuration.flags())
        .arg("--state-dir")
        .arg(state)
        .args(flags);
    Server::launch(command).unwrap_or_else(|ended| panic!("the server did not start: {ended:?}"))
}

/// Ends a server as a crash does: at once, and it learns nothing of it.
fn kill(mut server: Server) {
    server.signal(Signal::KILL);
    assert_eq!(server.wait().code, None, "it had ended by itself");
}

/// A lease as its client believes in it, up to the very end of the protocol's bound.
struct Lease {
    token: u64,
    until: Instant,
}

/// Takes a key at once.
#[track_caller]
fn take(client: &mut Client, key: &str, lease_ms: u32) -> Lease {
    let sent_at = client.send(&acquire_ms(7, 0, lease_ms, key));
    let token = client.granted(7).token;
    let until = sent_at + Duration::from_millis(lease_ms.into());
    Lease { token, until }
}

/// The key is not free, for anybody.
#[track_caller]
fn expect_taken(client: &mut Client, key: &str) {
    client.send(&acquire(8, 0, 1, key));
    client.expect(Reply::TimedOut(8));
}

/// Waits for a key that somebody may believe in, and gets it when nobody may.
#[track_caller]
fn take_after(client: &mut Client, key: &str, before: &Lease) -> u64 {
    client.send(&acquire_ms(9, 60_000, 60_000, key));
    let token = client.granted(9).token;
    assert!(
        client.received_at() >= before.until,
        "{key} was granted while its former holder could believe in its lease"
    );
    assert!(token > before.token, "the tokens of {key} do not grow");
    token
}
