//! How a connection ends: one request, one answer, and nothing that the client
//! does meanwhile turns the answer into a reset.

use super::exchange::{
    Connection, await_answer, bare, encode, expect, line, lock, own, put, start, test_lock,
};
use crate::common::configuration::in_every_configuration;

const MIB: usize = 1024 * 1024;

/// Scenario 42.
#[test]
fn s42_the_second_request_of_a_segment_is_not_looked_at() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let mut connection = Connection::open(&server);
        let first = line(&lock("A", "first", "30"));
        let second = line(&lock("A", "second", "30"));
        connection.send(&[first, second].concat());
        assert_eq!(connection.answer(), own("Locked", "A"));
        expect(&server, &test_lock("A", "first"), &own("Locked", "A"));
        expect(&server, &test_lock("A", "second"), &bare("Unlocked"));
    });
}

#[test]
fn a_second_request_after_the_answer_is_not_looked_at() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let mut connection = Connection::open(&server);
        connection.send(&line(&lock("A", "first", "30")));
        assert_eq!(connection.answer_before_any_end(), own("Locked", "A"));
        // The server may have closed by now; whatever is said is not heard.
        let _ = connection.try_send(&line(&lock("A", "second", "30")));
        let _ = connection.read_to_end();
        expect(&server, &test_lock("A", "second"), &bare("Unlocked"));
    });
}

/// Scenario 42.
#[test]
fn s42_a_request_without_its_newline_gets_no_answer() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let whole = line(&lock("A", "k", "30"));
        let unfinished: [&[u8]; 5] = [
            b"",
            b"\r",
            &whole[..1],
            &whole[..whole.len() / 2],
            &whole[..whole.len() - 1],
        ];
        for bytes in unfinished {
            let mut connection = Connection::open(&server);
            connection.send(bytes);
            connection.finish();
            connection.expect_silent_end();
        }
        let mut undecodable = Connection::open(&server);
        undecodable.send(b"{ no code }");
        undecodable.finish();
        undecodable.expect_silent_end();
        expect(&server, &test_lock("A", "k"), &bare("Unlocked"));
    });
}

/// Scenario 42.
#[test]
fn s42_a_client_that_closes_before_the_answer_hurts_nobody() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        for round in 0..50 {
            let name = format!("k{round}");
            let mut connection = Connection::open(&server);
            connection.send(&line(&lock("A", &name, "300")));
            drop(connection);
            // The request was complete: it takes effect.
            await_answer(&server, &test_lock("A", &name), &own("Locked", "A"));
            let mut connection = Connection::open(&server);
            connection.send(&line(&lock("B", &name, "300")));
            connection.reset();
            let mut connection = Connection::open(&server);
            connection.send(&encode(b"{"));
            connection.reset();
        }
        expect(&server, &lock("A", "alive", "30"), &own("Locked", "A"));
    });
}

#[test]
fn a_half_closed_client_gets_its_answer() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let mut connection = Connection::open(&server);
        connection.send(&line(&lock("A", "k", "30")));
        connection.finish();
        assert_eq!(connection.answer(), own("Locked", "A"));
        let mut connection = Connection::open(&server);
        connection.send(&[&line(&lock("A", "k", "30"))[..], b"and more"].concat());
        connection.finish();
        assert_eq!(connection.answer(), own("Locked", "A"));
    });
}

#[test]
fn a_request_in_many_pieces_is_one_request() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let whole = line(&lock("A", "k", "30"));
        let mut connection = Connection::open(&server);
        for byte in &whole {
            connection.send(std::slice::from_ref(byte));
            // The server has time to see the piece by itself.
            std::thread::yield_now();
        }
        assert_eq!(connection.answer(), own("Locked", "A"));
    });
}

#[test]
fn bytes_after_the_newline_do_not_reset_the_answer() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let rest = vec![b'x'; 8 * MIB];
        for request in [
            lock("A", "k", "30"),
            put("A", "k", "30", &"y".repeat(9_999)),
        ] {
            let mut connection = Connection::open(&server);
            connection.send(&line(&request));
            connection.send(&rest);
            connection.finish();
            assert_ne!(connection.answer(), bare("BadPayload"));
        }
        let mut refused = Connection::open(&server);
        refused.send(b"?\n");
        refused.send(&rest);
        refused.finish();
        assert_eq!(refused.answer(), bare("BadPayload"));
        // Within reason: what goes on for ever is cut off, the answer is there.
        let mut endless = Connection::open(&server);
        endless.send(&line(&lock("A", "k", "30")));
        let mut sent = 0;
        while endless.try_send(&rest).is_ok() {
            sent += rest.len();
            assert!(sent < 1024 * MIB, "the server reads on for ever");
        }
        assert_eq!(endless.answer_before_any_end(), own("Locked", "A"));
    });
}
