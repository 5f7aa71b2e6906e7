//! Names of every loop, asked for on connections of every loop: which one accepts a
//! connection is the kernel's choice.

use super::exchange::{
    Connection, bare, data, erase, expect, get, line, lock, own, put, start, test_lock, unlock,
};
use crate::common::configuration::in_every_configuration;

/// So many connections that every loop accepts some of them.
const ROUNDS: usize = 40;

#[test]
fn a_name_is_the_same_whatever_loop_is_asked() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let routing = server.routing();
        let long = "x".repeat(10_000);
        for loop_index in 0..routing.loops {
            let name = routing.key(loop_index, "k");
            for round in 0..ROUNDS {
                // Each of these is a connection of its own.
                let id = format!("A{round}");
                expect(&server, &lock(&id, &name, "300"), &own("Locked", &id));
                expect(&server, &lock("B", &name, "300"), &bare("NotOwner"));
                expect(&server, &test_lock(&id, &name), &own("Locked", &id));
                expect(&server, &put(&id, &name, "300", &long), &own("Done", &id));
                expect(&server, &get(&id, &name), &data(&id, &long));
                expect(&server, &erase(&id, &name), &own("Done", &id));
                expect(&server, &unlock("B", &name), &bare("NotOwner"));
                expect(&server, &unlock(&id, &name), &own("Unlocked", &id));
                expect(&server, &test_lock(&id, &name), &bare("Unlocked"));
            }
        }
    });
}

/// Scenario 51: hundreds of requests with long values are on their way between loops at
/// a time, whose answers nobody reads yet.
#[test]
fn s51_requests_of_many_connections_at_once_are_each_answered_once() {
    const CONNECTIONS: usize = 300;
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let value = |number: usize| format!("{number} ").repeat(2_000);
        let name = |number: usize| format!("name {number}");
        let ask_all = |request: &dyn Fn(usize) -> serde_json::Value| -> Vec<Connection> {
            let ask = |number| {
                let mut connection = Connection::open(&server);
                connection.send(&line(&request(number)));
                connection
            };
            (0..CONNECTIONS).map(ask).collect()
        };
        let puts = ask_all(&|number| put("A", &name(number), "300", &value(number)));
        for mut connection in puts {
            assert_eq!(connection.answer(), own("Done", "A"));
        }
        let gets = ask_all(&|number| get("A", &name(number)));
        for (number, mut connection) in gets.into_iter().enumerate() {
            assert_eq!(connection.answer(), data("A", &value(number)));
        }
    });
}
