//! Which loop a session comes to.

use std::sync::Barrier;

use super::{LONG_S, raise_descriptor_limit, random};
use crate::common::client::Client;
use crate::common::configuration::in_every_configuration;
use crate::common::directory::Directory;
use crate::common::server::Server;
use crate::common::wire::{ANY_LOOP, acquire, hello};

/// Connects and learns the loop from Welcome.
fn greet(address: &str, wanted_loop: u16) -> (Client, u16) {
    let mut client = Client::connect(address).unwrap();
    client.send(&hello(0, wanted_loop, 1, ""));
    let welcome = client.welcome();
    (client, welcome.loop_index)
}

#[test]
fn s27_sixty_four_connections_at_once_are_spread_exactly() {
    in_every_configuration(|configuration| {
        let directory = Directory::new("balance");
        let unix = format!("unix:{}", directory.file("socket"));
        let flags = ["--listen", "127.0.0.1:0", "--listen", &unix];
        let server = Server::start(configuration, &flags);
        let per_loop = 64 / usize::from(configuration.loops);
        let sessions: Vec<(Client, u16)> = std::thread::scope(|scope| {
            // Eight threads, of which each of the three listeners gets some.
            let connect = |thread: usize| {
                let address = &server.addresses()[thread % 3];
                scope.spawn(move || (0..8).map(|_| greet(address, ANY_LOOP)).collect::<Vec<_>>())
            };
            let threads: Vec<_> = (0..8).map(connect).collect();
            let sessions = threads.into_iter().map(|thread| thread.join().unwrap());
            sessions.flatten().collect()
        });
        let mut counts = vec![0; configuration.loops.into()];
        for (_, loop_index) in &sessions {
            counts[usize::from(*loop_index)] += 1;
        }
        assert_eq!(counts, vec![per_loop; counts.len()]);
    });
}

#[test]
fn s33_a_thousand_clients_that_come_at_once_are_all_served_and_spread() {
    const THREADS: usize = 16;
    const PER_THREAD: usize = 64;
    raise_descriptor_limit(1_200);
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let address = &server.addresses()[0];
        let start = Barrier::new(THREADS);
        let loops: Vec<u16> = std::thread::scope(|scope| {
            let come = |thread: usize| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    // Nobody waits for an answer before all of his have come.
                    let connect = |_| {
                        let mut client = Client::connect(address).unwrap();
                        client.send(&hello(0, ANY_LOOP, 1, ""));
                        client
                    };
                    let mut clients: Vec<Client> = (0..PER_THREAD).map(connect).collect();
                    let mut loops = Vec::new();
                    for (number, client) in clients.iter_mut().enumerate() {
                        loops.push(client.welcome().loop_index);
                        client.send(&acquire(2, 0, LONG_S, format!("{thread}.{number}")));
                        client.granted(2);
                    }
                    (clients, loops)
                })
            };
            let threads: Vec<_> = (0..THREADS).map(come).collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap());
            // All stay until the last has come.
            let (clients, loops): (Vec<_>, Vec<_>) = ended.unzip();
            drop(clients);
            loops.concat()
        });
        let per_loop = THREADS * PER_THREAD / usize::from(configuration.loops);
        for index in 0..configuration.loops {
            let count = loops.iter().filter(|&&it| it == index).count();
            assert_eq!(count, per_loop, "loop {index}");
        }
    });
}

#[test]
fn s27_a_session_comes_to_a_loop_with_the_fewest_whatever_came_and_went() {
    in_every_configuration(|configuration| {
        let directory = Directory::new("balance");
        let unix = format!("unix:{}", directory.file("socket"));
        let flags = ["--listen", "127.0.0.1:0", "--listen", &unix];
        let server = Server::start(configuration, &flags);
        let loops = usize::from(configuration.loops);
        // By loop; the first of each stays.
        let mut sessions: Vec<Vec<Client>> = (0..loops).map(|_| Vec::new()).collect();
        let mut seed = 27;
        for step in 0..400 {
            let address = &server.addresses()[random(&mut seed) as usize % 3];
            let counts = sessions.iter().map(Vec::len);
            let fewest = counts.min().unwrap();
            match random(&mut seed) % 8 {
                // While every loop has its first, some close, several of one loop mostly.
                0..=2 if fewest > 0 => {
                    let of_loop = &mut sessions[random(&mut seed) as usize % loops];
                    let left = 1 + random(&mut seed) as usize % of_loop.len();
                    for mut client in of_loop.drain(left..) {
                        client.finish();
                        client.expect_end();
                    }
                    // Now the loop is through with them.
                    of_loop[0].expect_quiet();
                    of_loop[0].expect_quiet();
                }
                // One that moves leaves its place to the next.
                3 if fewest > 0 => {
                    let wanted = random(&mut seed) as u16 % configuration.loops;
                    let (client, loop_index) = greet(address, wanted);
                    assert_eq!(loop_index, wanted);
                    sessions[usize::from(wanted)].push(client);
                }
                _ => {
                    let (client, loop_index) = greet(address, ANY_LOOP);
                    let of_loop = &mut sessions[usize::from(loop_index)];
                    assert_eq!(of_loop.len(), fewest, "step {step}: loop {loop_index}");
                    of_loop.push(client);
                }
            }
        }
        for client in sessions.iter_mut().flatten() {
            client.expect_quiet();
        }
    });
}
