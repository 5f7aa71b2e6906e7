//! How sessions end, and what becomes of what they hold and wait for.

use super::{Row, row};
use crate::common::client::Client;
use crate::common::server::Server;
use crate::common::wire::{RELEASE_ON_CLOSE, Reply, acquire, extend, ping, release};

const LONG_S: u8 = 250;

/// A session whose grants end with it.
fn releasing(server: &Server) -> Client {
    server.greet(RELEASE_ON_CLOSE)
}

/// Takes `key` for long.
fn hold(client: &mut Client, key: &str) -> u64 {
    client.send(&acquire(9, 0, LONG_S, key));
    client.granted(9).token
}

/// A session that queued on "k", and is known to be gone from the server once
/// "k" has no waiter any more.
fn queued(server: &Server) -> Client {
    let mut client = server.connect();
    client.send(&acquire(2, LONG_S, LONG_S, "k"));
    client.await_state("k", |state| state.waiters == 1);
    client
}

pub fn rows() -> Vec<Row> {
    let placed = ends()
        .into_iter()
        .chain(release_on_close())
        .map(Row::placed);
    placed.chain(connections()).collect()
}

fn ends() -> Vec<Row> {
    vec![
        row(
            "FIN: every complete frame takes effect and is answered",
            |server| {
                let mut client = server.connect();
                let mut cut = acquire(4, 0, LONG_S, "incomplete");
                cut.pop();
                client.send(&[acquire(1, 0, LONG_S, "k"), ping(2), ping(3), cut].concat());
                client.finish();
                let replies = client.rest_by_owner();
                assert!(
                    matches!(
                        replies[..],
                        [
                            Reply::Acquired { owner: 1, .. },
                            Reply::Pong(2),
                            Reply::Pong(3)
                        ]
                    ),
                    "{replies:?}"
                );
                let mut other = server.connect();
                assert!(other.state("k").held, "an unflagged session's grant stays");
                assert!(!other.state("incomplete").held);
            },
        ),
        row(
            "FIN: queued acquires are answered T and leave the queue",
            |server| {
                let mut holder = server.connect();
                hold(&mut holder, "k");
                hold(&mut holder, "l");
                let mut client = queued(server);
                client.send(&acquire(3, LONG_S, LONG_S, "l"));
                client.finish();
                let replies = client.rest_by_owner();
                assert_eq!(replies, [Reply::TimedOut(2), Reply::TimedOut(3)]);
                assert_eq!(holder.state("k").waiters, 0);
                assert_eq!(holder.state("l").waiters, 0);
            },
        ),
        row("FIN without a byte", |server| {
            let mut client = server.connect();
            client.finish();
            client.expect_end();
            server.connect().expect_quiet();
        }),
        row(
            "reset: queued acquires leave the queue, grants stay",
            |server| {
                let mut holder = server.connect();
                hold(&mut holder, "k");
                let mut client = queued(server);
                hold(&mut client, "l");
                client.reset();
                holder.await_state("k", |state| state.waiters == 0);
                assert!(holder.state("l").held);
            },
        ),
        row(
            "error close: queued acquires leave unanswered, grants stay",
            |server| {
                let mut holder = server.connect();
                let token = hold(&mut holder, "k");
                let mut client = queued(server);
                hold(&mut client, "l");
                client.send(b"?");
                client.expect_error(0, 1);
                client.expect_end();
                holder.await_state("k", |state| state.waiters == 0);
                assert!(holder.state("l").held);
                holder.send(&[release(3, token, "k"), acquire(4, 0, 1, "k")].concat());
                holder.expect(Reply::Released(3));
                holder.granted(4);
            },
        ),
        row(
            "error close: what the client still sends does not destroy the error",
            |server| {
                let mut client = server.connect();
                client.send(b"?");
                // In flight while the server closes: unread, it would turn into a reset.
                for owner in 1..=1_000 {
                    client.send(&ping(owner));
                }
                client.expect_error(0, 1);
                client.expect_end();
            },
        )
        .flags(&["--linger-ms", "20000"]),
    ]
}

fn release_on_close() -> Vec<Row> {
    vec![
        row(
            "RELEASE_ON_CLOSE, FIN: grants end at once, waiters are granted",
            |server| {
                let mut client = releasing(server);
                for key in ["k", "l", "m"] {
                    hold(&mut client, key);
                }
                let mut waiting = queued(server);
                client.finish();
                client.expect_end();
                waiting.granted(2);
                waiting.await_state("l", |state| !state.held);
                waiting.await_state("m", |state| !state.held);
            },
        ),
        row(
            "RELEASE_ON_CLOSE, FIN: its own queued acquires do not inherit",
            |server| {
                let mut client = releasing(server);
                hold(&mut client, "k");
                client.send(&acquire(2, LONG_S, LONG_S, "k"));
                client.finish();
                client.expect(Reply::TimedOut(2));
                client.expect_end();
                server.connect().await_state("k", |state| !state.held);
            },
        ),
        row(
            "RELEASE_ON_CLOSE, FIN behind the acquire itself",
            |server| {
                let mut client = releasing(server);
                client.send(&acquire(2, 0, LONG_S, "k"));
                client.finish();
                client.granted(2);
                client.expect_end();
                server.connect().await_state("k", |state| !state.held);
            },
        ),
        row(
            "RELEASE_ON_CLOSE, FIN: what another session extended stays",
            |server| {
                let mut client = releasing(server);
                let token = hold(&mut client, "k");
                hold(&mut client, "l");
                let mut other = server.connect();
                other.send(&extend(3, 1, token, "k"));
                assert!(matches!(other.reply(), Reply::Extended { owner: 3, .. }));
                client.finish();
                client.expect_end();
                other.await_state("l", |state| !state.held);
                assert!(other.state("k").held);
                other.send(&release(4, token, "k"));
                other.expect(Reply::Released(4));
            },
        ),
        row(
            "RELEASE_ON_CLOSE, FIN: what it extended itself ends",
            |server| {
                let mut client = releasing(server);
                let token = hold(&mut client, "k");
                client.send(&extend(3, LONG_S, token, "k"));
                assert!(matches!(client.reply(), Reply::Extended { owner: 3, .. }));
                client.finish();
                client.expect_end();
                server.connect().await_state("k", |state| !state.held);
            },
        ),
        row(
            "RELEASE_ON_CLOSE, FIN: a successor's grant of the key stays",
            |server| {
                let mut client = releasing(server);
                let token = hold(&mut client, "k");
                client.send(&release(3, token, "k"));
                client.expect(Reply::Released(3));
                hold(&mut client, "l");
                let mut other = server.connect();
                hold(&mut other, "k");
                client.finish();
                client.expect_end();
                other.await_state("l", |state| !state.held);
                assert!(other.state("k").held);
            },
        ),
        row(
            "without the flag, FIN leaves grants to their leases",
            |server| {
                let mut client = server.greet(0);
                hold(&mut client, "k");
                client.finish();
                client.expect_end();
                assert!(server.connect().state("k").held);
            },
        ),
    ]
}

fn connections() -> Vec<Row> {
    vec![
        row(
            "over --max-connections: closed without a byte, nobody notices",
            |server| {
                let mut first = server.connect();
                let mut second = server.connect();
                first.expect_quiet();
                second.expect_quiet();
                for _ in 0..5 {
                    server.connect().expect_cut();
                }
                first.expect_quiet();
                second.expect_quiet();
                first.finish();
                first.expect_end();
                // The place is free once the server has seen the end through.
                while !server.connect().answers_ping() {}
            },
        )
        .flags(&["--max-connections", "2"]),
    ]
}
