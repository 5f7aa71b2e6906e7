//! Wait queues: who is granted, who is woken, who leaves.

use std::time::{Duration, Instant};

use super::{LONG_S, raise_descriptor_limit};
use crate::common::client::Client;
use crate::common::configuration::in_every_configuration;
use crate::common::server::Server;
use crate::common::wire::{Reply, acquire, acquire_ms, cancel, release};

fn queue(server: &Server, key: &str, owner: u64, place: u32) -> Client {
    let mut client = server.connect();
    client.send(&acquire(owner, LONG_S, LONG_S, key));
    client.await_state(key, |state| state.waiters == place);
    client
}

#[test]
fn s07_the_head_is_granted_at_lease_end_though_nothing_else_happens() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let (mut holder, mut waiting) = (server.connect(), server.connect());
        let leases_ms = [1, 2, 30, 63, 64, 65, 128, 255, 256, 257, 300, 511, 512, 513];
        let mut sent = Vec::new();
        for (owner, lease_ms) in (1..).zip(leases_ms) {
            sent.push(holder.send(&acquire_ms(owner, 0, lease_ms, owner.to_string())));
            holder.granted(owner);
            waiting.send(&acquire(owner, LONG_S, LONG_S, owner.to_string()));
        }
        // From here on the server hears nothing from anybody.
        for _ in leases_ms {
            let Reply::Acquired { owner, .. } = waiting.reply() else {
                panic!("no grant");
            };
            let lease_ms = u64::from(leases_ms[owner as usize - 1]);
            let elapsed = waiting.received_at() - sent[owner as usize - 1];
            assert!(
                elapsed >= Duration::from_millis(lease_ms),
                "{elapsed:?} after a grant for {lease_ms} ms"
            );
        }
    });
}

#[test]
fn s08_a_thousand_killed_waiters_do_not_stand_before_a_live_one() {
    raise_descriptor_limit(1_200);
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let mut holder = server.connect();
        holder.send(&acquire(1, 0, LONG_S, "k"));
        let token = holder.granted(1).token;
        let mut dead: Vec<Client> = (0..1_000).map(|_| server.connect()).collect();
        for client in &mut dead {
            client.send(&acquire(2, LONG_S, LONG_S, "k"));
        }
        holder.await_state("k", |state| state.waiters == 1_000);
        dead.into_iter().for_each(Client::reset);
        // It joins and the holder releases perhaps before all the deaths are seen.
        let mut live = server.connect();
        live.send(&acquire(3, LONG_S, LONG_S, "k"));
        live.expect_quiet();
        holder.send(&release(4, token, "k"));
        holder.expect(Reply::Released(4));
        live.granted(3);
        assert_eq!(live.state("k").waiters, 0);
    });
}

#[test]
fn s09_one_release_grants_one_of_ten_thousand_and_wakes_nobody_else() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &["--max-waiters-per-key", "10000"]);
        let mut holder = server.connect();
        holder.send(&acquire(1, 0, LONG_S, "k"));
        let token = holder.granted(1).token;
        let hundred: Vec<u8> = (1..=100)
            .flat_map(|owner| acquire(owner, LONG_S, LONG_S, "k"))
            .collect();
        let mut waiting = Vec::new();
        for place in 1..=100 {
            let mut client = server.connect();
            client.send(&hundred);
            client.await_state("k", |state| state.waiters == 100 * place);
            waiting.push(client);
        }
        holder.send(&release(2, token, "k"));
        holder.expect(Reply::Released(2));
        waiting[0].granted(1);
        for client in &mut waiting {
            client.expect_quiet();
        }
        assert_eq!(holder.state("k").waiters, 9_999);
    });
}

#[test]
fn s10_whoever_leaves_the_middle_of_a_queue_leaves_the_order_alone() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let mut holder = server.connect();
        holder.send(&acquire(1, 0, LONG_S, "k"));
        let mut token = holder.granted(1).token;
        let mut queued: Vec<Client> = (1..=9)
            .map(|place| queue(&server, "k", place.into(), place))
            .collect();
        // One that dies, one that closes, one that cancels, one whose wait ends.
        queued.remove(7).reset();
        holder.await_state("k", |state| state.waiters == 8);
        let mut closing = queued.remove(5);
        closing.finish();
        closing.expect(Reply::TimedOut(6));
        closing.expect_end();
        queued[3].send(&cancel(50, 4, "k"));
        queued[3].expect(Reply::TimedOut(4));
        queued[3].expect(Reply::CancelDone {
            owner: 50,
            cancelled: true,
        });
        queued[4].send(&acquire_ms(60, 1, LONG_S.into(), "k"));
        queued[4].expect(Reply::TimedOut(60));
        let order = [1, 2, 3, 5, 7, 9];
        let places = [0, 1, 2, 4, 5, 6];
        for (owner, place) in order.into_iter().zip(places) {
            holder.send(&release(2, token, "k"));
            holder.expect(Reply::Released(2));
            token = queued[place].granted(owner).token;
        }
        assert_eq!(holder.state("k").waiters, 0);
    });
}

#[test]
fn s13_a_holder_queued_on_its_own_key_is_granted_again() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let mut client = server.connect();
        client.send(&[acquire(1, 0, LONG_S, "k"), acquire(2, LONG_S, LONG_S, "k")].concat());
        let first = client.granted(1).token;
        assert_eq!(client.state("k").waiters, 1);
        client.send(&release(3, first, "k"));
        client.expect(Reply::Released(3));
        let second = client.granted(2).token;
        assert!(second > first);
        // The first token is good for nothing any more.
        client.send(&release(4, first, "k"));
        client.expect(Reply::NotHeld(4));
        assert!(client.state("k").held);
        client.send(&release(5, second, "k"));
        client.expect(Reply::Released(5));
        assert!(!client.state("k").held);
    });
}

#[test]
fn s20_a_wait_of_one_millisecond_is_neither_a_second_nor_for_ever() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let mut client = server.connect();
        client.send(&acquire(1, 0, LONG_S, "k"));
        client.granted(1);
        let mut ends: Vec<(u64, Instant)> = Vec::new();
        let sent = client.send(
            &[
                acquire(2, 1, 1, "k"),
                acquire_ms(3, 500, 1, "k"),
                acquire_ms(4, 1, 1, "k"),
            ]
            .concat(),
        );
        for _ in 0..3 {
            match client.reply() {
                Reply::TimedOut(owner) => ends.push((owner, client.received_at())),
                other => panic!("{other:?}"),
            }
        }
        let order: Vec<u64> = ends.iter().map(|(owner, _)| *owner).collect();
        assert_eq!(order, [4, 3, 2], "the shortest wait ends first");
        for ((_, end), wait_ms) in ends.iter().zip([1, 500, 1_000]) {
            assert!(*end - sent >= Duration::from_millis(wait_ms));
        }
    });
}
