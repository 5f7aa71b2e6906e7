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

/// Reads what [`every_request`] must be answered: Welcome first, what the key's loop
/// answers in the order asked, and the rest whenever it comes.
#[track_caller]
fn assert_every_reply(client: &mut Client) {
    let owner = NEWLINES;
    let welcome = client.welcome();
    assert_eq!((welcome.owner, welcome.flags), (owner, 0));
    let replies: Vec<Reply> = (0..14).map(|_| client.reply()).collect();
    let is_of_the_key = |reply: &Reply| !matches!(reply, Reply::Pong(_) | Reply::Error { .. });
    let (of_the_key, mut others): (Vec<Reply>, Vec<Reply>) =
        replies.into_iter().partition(is_of_the_key);
    let none = Reply::CancelDone {
        owner,
        cancelled: false,
    };
    match of_the_key[..] {
        [
            Reply::State {
                owner: NEWLINES,
                held: false,
                remaining_ms: 0,
                waiters: 0,
            },
            Reply::Acquired {
                owner: NEWLINES, ..
            },
            Reply::TimedOut(NEWLINES),
            Reply::TimedOut(NEWLINES),
            Reply::State {
                owner: NEWLINES,
                held: true,
                remaining_ms: 1..=10_000,
                waiters: 0,
            },
            Reply::NotHeld(NEWLINES),
            Reply::NotHeld(NEWLINES),
            Reply::NotHeld(NEWLINES),
            last,
        ] if last == none => {}
        _ => panic!("{of_the_key:?}"),
    }
    let order = |reply: &Reply| match *reply {
        Reply::Error { code, .. } => (1, u64::from(code)),
        _ => (0, reply.owner()),
    };
    others.sort_by_key(order);
    let error = |code| Reply::Error { owner, code };
    let expected = [
        Reply::Pong(1),
        Reply::Pong(owner),
        error(3),
        error(3),
        error(4),
    ];
    assert_eq!(others, expected);
}

/// A session on each loop, to tell when all loops have read what was sent before.
struct Witnesses(Vec<Client>);

impl Witnesses {
    fn new(server: &Server) -> Witnesses {
        Witnesses(server.connect_everywhere())
    }

    /// Sends the segments one by one, each read by the server before the next: what
    /// another session of the same loop asks later is answered later.
    fn send_apart(&mut self, client: &mut Client, segments: &[&[u8]]) {
        for segment in segments {
            client.send(segment);
            for witness in &mut self.0 {
                witness.expect_quiet();
                witness.expect_quiet();
            }
        }
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
                // Two of the nine are on other keys than the rest.
                let replies: Vec<Reply> = (0..9).map(|_| client.reply()).collect();
                let is_other =
                    |reply: &Reply| matches!(reply, Reply::Pong(_) | Reply::Acquired { .. });
                let (mut others, of_the_key): (Vec<Reply>, Vec<Reply>) =
                    replies.into_iter().partition(is_other);
                others.sort_by_key(|reply| matches!(reply, Reply::Acquired { .. }));
                match others[..] {
                    [Reply::Pong(pong), Reply::Acquired { owner, .. }] => {
                        assert_eq!((pong, owner), (number, number));
                    }
                    _ => panic!("{others:?}"),
                }
                let none = |owner| Reply::CancelDone {
                    owner,
                    cancelled: false,
                };
                let expected = [
                    Reply::State {
                        owner: number,
                        held: false,
                        remaining_ms: 0,
                        waiters: 0,
                    },
                    Reply::NotHeld(number),
                    Reply::NotHeld(1),
                    Reply::NotHeld(number),
                    Reply::NotHeld(number),
                    none(number),
                    none(1),
                ];
                assert_eq!(of_the_key, expected);
            }
            for byte in 0..4 {
                let time_ms = 0x0A_u32 << (8 * byte);
                let code_or_grant = if time_ms > 255_000 { 4 } else { 0 };
                let requests = [
                    acquire_ms(1, 0, time_ms, format!("lease{byte}")),
                    acquire_ms(2, time_ms, 1_000, format!("wait{byte}")),
                ];
                for (owner, request) in (1..).zip(requests) {
                    client.send(&request);
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
            let mut witnesses = Witnesses::new(server);
            for split in 1..whole {
                let mut client = server.connect();
                let requests = every_request(&format!("key-{split:04}"));
                let (head, tail) = requests.split_at(split);
                witnesses.send_apart(&mut client, &[head, tail]);
                assert_every_reply(&mut client);
                client.expect_quiet();
            }
        }),
        row("one byte per segment", |server| {
            let mut client = server.connect();
            let requests = every_request("k");
            let segments: Vec<&[u8]> = requests.chunks(1).collect();
            Witnesses::new(server).send_apart(&mut client, &segments);
            assert_every_reply(&mut client);
        }),
        row(
            "segments that straddle frames, of every small length",
            |server| {
                let mut witnesses = Witnesses::new(server);
                for length in 2..=40 {
                    let mut client = server.connect();
                    let requests = every_request(&format!("key-{length}"));
                    let segments: Vec<&[u8]> = requests.chunks(length).collect();
                    witnesses.send_apart(&mut client, &segments);
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
                for (number, key) in (0..).zip(&keys) {
                    let owner = 4 * number;
                    bytes.extend(acquire(owner, 0, LONG_S, key));
                    bytes.extend(acquire(owner + 1, 0, LONG_S, key));
                    bytes.extend(query(owner + 2, key));
                    bytes.extend(ping(owner + 3));
                }
                client.send(&bytes);
                let mut answered = vec![0; keys.len()];
                let mut pongs = 0;
                for _ in 0..4 * keys.len() {
                    let reply = client.reply();
                    let (key, step) = (reply.owner() as usize / 4, reply.owner() % 4);
                    match (step, reply) {
                        (3, Reply::Pong(_)) => {
                            pongs += 1;
                            continue;
                        }
                        (0, Reply::Acquired { .. })
                        | (1, Reply::TimedOut(_))
                        | (2, Reply::State { held: true, .. }) => {}
                        (_, other) => panic!("{other:?}"),
                    }
                    assert_eq!(answered[key], step, "out of order on key {key}");
                    answered[key] += 1;
                }
                assert_eq!((pongs, answered), (keys.len(), vec![3; keys.len()]));
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
