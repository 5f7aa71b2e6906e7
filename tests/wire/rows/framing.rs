//! Newlines in headers, every split of frames into segments, many frames in one.

use super::{Row, row};
use crate::common::client::Client;
use crate::common::server::Server;
use crate::common::wire::{
    ANY_LOOP, Reply, acquire, acquire_ms, cancel, extend, extend_ms, hello, ping, ping_with_key,
    query, release,
};

const LONG_S: u8 = 250;
/// An owner, target or token of nothing but newlines.
const NEWLINES: u64 = 0x0A0A_0A0A_0A0A_0A0A;

/// Every request on `key` (free before, held after), headers full of newlines.
fn every_request(key: &str) -> Vec<u8> {
    [
        hello(0x0A, ANY_LOOP, NEWLINES, "\r\0"),
        ping(NEWLINES),
        query(NEWLINES, key),
        acquire(NEWLINES, 10, 10, key),
        acquire(NEWLINES, 0, 10, key),
        acquire_ms(NEWLINES, 0, 0x0A0A, key),
        query(NEWLINES, key),
        release(NEWLINES, NEWLINES, key),
        extend(NEWLINES, 10, NEWLINES, key),
        extend_ms(NEWLINES, 0x0A0A, NEWLINES, key),
        cancel(NEWLINES, NEWLINES, key),
        acquire(NEWLINES, 10, 10, ""),
        ping_with_key(NEWLINES, key),
        acquire_ms(NEWLINES, 0x0A0A_0A0A, 10, key),
        ping(1),
    ]
    .concat()
}

/// Reads what [`every_request`] must be answered.
#[track_caller]
fn assert_every_reply(client: &mut Client) {
    let owner = NEWLINES;
    match client.reply() {
        Reply::Welcome(welcome) => assert_eq!((welcome.owner, welcome.flags), (owner, 0)),
        other => panic!("{other:?}"),
    }
    client.expect(Reply::Pong(owner));
    client.expect(Reply::State {
        owner,
        held: false,
        remaining_ms: 0,
        waiters: 0,
    });
    client.granted(owner);
    client.expect(Reply::TimedOut(owner));
    client.expect(Reply::TimedOut(owner));
    match client.reply() {
        Reply::State {
            owner: NEWLINES,
            held: true,
            remaining_ms: 1..=10_000,
            waiters: 0,
        } => {}
        other => panic!("{other:?}"),
    }
    client.expect(Reply::NotHeld(owner));
    client.expect(Reply::NotHeld(owner));
    client.expect(Reply::NotHeld(owner));
    client.expect(Reply::CancelDone {
        owner,
        cancelled: false,
    });
    client.expect_error(owner, 3);
    client.expect_error(owner, 3);
    client.expect_error(owner, 4);
    client.expect(Reply::Pong(1));
}

/// Sends the segments one by one, each read by the server before the next: what
/// another session asks later is answered later.
fn send_apart(server: &Server, client: &mut Client, segments: &[&[u8]]) {
    let mut other = server.connect();
    for segment in segments {
        client.send(segment);
        other.expect_quiet();
        other.expect_quiet();
    }
}

pub fn rows() -> Vec<Row> {
    vec![
        row("headers full of newlines, in one segment", |server| {
            let mut client = server.connect();
            client.send(&every_request("k"));
            assert_every_reply(&mut client);
        }),
        row("a newline in each single byte of each header", |server| {
            let mut client = server.connect();
            for byte in 0..8 {
                let number = 0x0A << (8 * byte);
                client.send(
                    &[
                        ping(number),
                        query(number, "k"),
                        release(number, 1, "k"),
                        release(1, number, "k"),
                        extend(number, 1, number, "k"),
                        extend_ms(number, 1, number, "k"),
                        cancel(number, 1, "k"),
                        cancel(1, number, "k"),
                        acquire(number, 10, 10, format!("k{byte}")),
                    ]
                    .concat(),
                );
                client.expect(Reply::Pong(number));
                assert!(
                    matches!(client.reply(), Reply::State { held: false, owner, .. }
                    if owner == number)
                );
                for owner in [number, 1, number, number] {
                    client.expect(Reply::NotHeld(owner));
                }
                for owner in [number, 1] {
                    client.expect(Reply::CancelDone {
                        owner,
                        cancelled: false,
                    });
                }
                client.granted(number);
            }
            for byte in 0..4 {
                let time_ms = 0x0A_u32 << (8 * byte);
                let code_or_grant = if time_ms > 255_000 { 4 } else { 0 };
                client.send(&acquire_ms(1, 0, time_ms, format!("lease{byte}")));
                client.send(&acquire_ms(2, time_ms, 1_000, format!("wait{byte}")));
                for owner in [1, 2] {
                    if code_or_grant == 0 {
                        client.granted(owner);
                    } else {
                        client.expect_error(owner, code_or_grant);
                    }
                }
            }
        }),
        row("every split into two segments", |server| {
            let whole = every_request("key-0000").len();
            for split in 1..whole {
                let mut client = server.connect();
                let requests = every_request(&format!("key-{split:04}"));
                let (head, tail) = requests.split_at(split);
                send_apart(server, &mut client, &[head, tail]);
                assert_every_reply(&mut client);
                client.expect_quiet();
            }
        }),
        row("one byte per segment", |server| {
            let mut client = server.connect();
            let requests = every_request("k");
            let segments: Vec<&[u8]> = requests.chunks(1).collect();
            send_apart(server, &mut client, &segments);
            assert_every_reply(&mut client);
        }),
        row(
            "segments that straddle frames, of every small length",
            |server| {
                for length in 2..=40 {
                    let mut client = server.connect();
                    let requests = every_request(&format!("key-{length}"));
                    let segments: Vec<&[u8]> = requests.chunks(length).collect();
                    send_apart(server, &mut client, &segments);
                    assert_every_reply(&mut client);
                }
            },
        ),
        row(
            "very many frames at once: each is answered, in order per key",
            |server| {
                let mut client = server.connect();
                let keys: Vec<String> = (0..500).map(|number| format!("key-{number}")).collect();
                let mut bytes = Vec::new();
                for key in &keys {
                    bytes.extend(acquire(1, 0, LONG_S, key));
                    bytes.extend(acquire(2, 0, LONG_S, key));
                    bytes.extend(query(3, key));
                    bytes.extend(ping(4));
                }
                client.send(&bytes);
                let mut counts = [0; 5];
                for _ in 0..4 * keys.len() {
                    let owner = match client.reply() {
                        Reply::Acquired { owner: 1, .. } => 1,
                        Reply::TimedOut(2) => 2,
                        Reply::State {
                            owner: 3,
                            held: true,
                            ..
                        } => 3,
                        Reply::Pong(4) => 4,
                        other => panic!("{other:?}"),
                    };
                    counts[owner] += 1;
                }
                assert_eq!(counts, [0, 500, 500, 500, 500]);
                client.expect_quiet();
            },
        ),
        row("long keys, far more than any receive buffer", |server| {
            let mut client = server.connect();
            let mut bytes = Vec::new();
            for owner in 1..=400 {
                let key = format!("{owner:01000}");
                bytes.extend(acquire(owner, 0, LONG_S, &key));
                bytes.extend(acquire(1_000 + owner, 0, LONG_S, &key));
            }
            client.send(&bytes);
            let (mut granted, mut refused) = (0, 0);
            for _ in 0..800 {
                match client.reply() {
                    Reply::Acquired { owner: 1..=400, .. } => granted += 1,
                    Reply::TimedOut(1_001..=1_400) => refused += 1,
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((granted, refused), (400, 400));
        }),
    ]
}
