//! What the kernel runs out of: buffers, room in its queues, slots, memory.

use rustix::process::{Resource, getrlimit, setrlimit};

use super::*;

/// Scenario 21.
#[test]
fn an_empty_buffer_pool_disconnects_nobody_and_loses_nothing() {
    if is_missing() {
        return;
    }
    const SESSIONS: usize = 3_000;
    let want_descriptors = 2 * SESSIONS as u64;
    let mut limit = getrlimit(Resource::Nofile);
    if limit
        .current
        .is_some_and(|current| current < want_descriptors)
    {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).unwrap();
    }
    for (buffer_bytes, sessions, pings_each) in [(64, 200, 50), (512, SESSIONS, 100)] {
        let mut world = World::new(
            RingOptions {
                buffers: 4,
                buffer_bytes,
                files: SESSIONS as u32,
                ..options()
            },
            config(),
        );
        serve_bursts(&mut world, sessions, pings_each);
        assert!(world.counters().buffers_exhausted > 0);
    }
}

/// Sessions that could each use all of a small pool all the time leave one that asks
/// for little its share of it.
#[test]
fn sessions_that_flood_an_empty_pool_starve_nobody() {
    if is_missing() {
        return;
    }
    for flooders in 1..=6 {
        let mut world = World::new(
            RingOptions {
                buffers: 2,
                buffer_bytes: 64,
                ..options()
            },
            config(),
        );
        let flood = pings(1..1_001);
        let mut flooders: Vec<(TcpStream, usize)> =
            (0..flooders).map(|_| (world.connect(), 0)).collect();
        let mut quiet = world.connect();
        for round in 1..=20 {
            quiet.write_all(&pings(round..round + 1)).unwrap();
            let (mut pong, mut turns) = (Vec::new(), 0);
            while pong.len() < PONG_BYTES {
                for (flooder, written) in &mut flooders {
                    write_some(flooder, &flood, written);
                    if *written == flood.len() {
                        *written = 0;
                    }
                    assert!(!read_some(flooder, &mut Vec::new()));
                }
                world.turn();
                assert!(!read_some(&mut quiet, &mut pong));
                turns += 1;
                assert!(turns < 50, "round {round}: never its turn");
            }
            assert_pongs(&pong, round..round + 1);
        }
        assert!(world.counters().buffers_exhausted > 20);
    }
}

/// More completions at a time than the queue holds: the kernel keeps them, and ends
/// what was to go on by itself.
#[test]
fn a_full_completion_queue_loses_nothing() {
    if is_missing() {
        return;
    }
    let mut world = World::new(
        RingOptions {
            submissions: 4,
            completions: 4,
            buffers: 128,
            buffer_bytes: 64,
            ..options()
        },
        config(),
    );
    serve_bursts(&mut world, 40, 100);
    let counters = world.counters();
    assert!(counters.overflows > 0);
    assert!(counters.queue_full > 0);
    assert!(counters.receives_rearmed > 0);
    assert!(counters.accepts_rearmed > 0);
}

/// Scenario 22: who finds no slot is turned away at once; who has one is served,
/// and the next in line gets the one that becomes free.
#[test]
fn connections_over_the_table_s_size_are_turned_away() {
    if is_missing() {
        return;
    }
    let mut world = World::new(
        RingOptions {
            files: 3,
            ..options()
        },
        config(),
    );
    let mut clients: Vec<TcpStream> = (0..10).map(|_| world.connect()).collect();
    world.turns_until("seven are turned away", |event_loop| {
        event_loop.counters().turned_away == 7
    });
    assert_eq!(world.sessions(), 3);
    for client in &mut clients[3..] {
        assert!(world.read_to_end(client).is_empty());
    }
    for client in &mut clients[..3] {
        client.write_all(&pings(1..2)).unwrap();
        assert_pongs(&world.read(client, PONG_BYTES), 1..2);
    }
    clients.remove(0);
    world.turns_until("one has left", |event_loop| event_loop.ring.open_files == 2);
    let mut next = world.connect();
    next.write_all(&pings(5..6)).unwrap();
    assert_pongs(&world.read(&mut next, PONG_BYTES), 5..6);
    assert_eq!(world.counters().accept_rests, 0);
}

/// The kernel has no room, and nothing of ours is to blame: accepting rests, which
/// takes no turns meanwhile, and goes on.
#[test]
fn accepting_rests_while_the_kernel_has_no_room() {
    if is_missing() {
        return;
    }
    let unforeseen = Errno::INVAL;
    for error in [Errno::NFILE, Errno::MFILE, Errno::NOBUFS, unforeseen] {
        let mut world = World::unstarted(options(), config());
        world.event_loop.ring.enable().unwrap();
        let mut client = world.connect();
        world.event_loop.handle(Completion::Accepted {
            listener: 0,
            outcome: Accepted::Failed(error),
            armed: false,
        });
        assert_eq!(world.counters().accept_rests, 1);
        let before = world.event_loop.listeners[0].rest_until;
        let sleep = world.event_loop.sleep_for().unwrap();
        assert!(sleep <= Duration::from_millis(ACCEPT_REST_MS));
        world.turns_until("it accepts again", |event_loop| {
            event_loop.turn.worker.session_count() == 1
        });
        assert!(clock::now() >= before);
        client.write_all(&pings(1..2)).unwrap();
        assert_pongs(&world.read(&mut client, PONG_BYTES), 1..2);
    }
}

/// A connection that is reset while it waits to be accepted, and one whose accept
/// fails for a reason of its own, harm nobody.
#[test]
fn a_failed_accept_of_one_connection_is_followed_by_the_next() {
    if is_missing() {
        return;
    }
    let mut world = World::new(options(), config());
    let gone = world.connect();
    SockRef::from(&gone)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(gone);
    let mut client = world.connect();
    client.write_all(&pings(1..2)).unwrap();
    assert_pongs(&world.read(&mut client, PONG_BYTES), 1..2);

    // As if the kernel had said so of one.
    for error in [Errno::CONNABORTED, Errno::PERM, Errno::PROTO] {
        let mut world = World::unstarted(options(), config());
        world.event_loop.ring.enable().unwrap();
        let mut client = world.connect();
        world.event_loop.handle(Completion::Accepted {
            listener: 0,
            outcome: Accepted::Failed(error),
            armed: false,
        });
        client.write_all(&pings(1..2)).unwrap();
        assert_pongs(&world.read(&mut client, PONG_BYTES), 1..2);
        assert_eq!(world.counters().accept_rests, 0);
    }
}

/// A cancel that comes when the kernel is between two steps of an operation finds
/// nothing: it is tried again while the operation goes on, and then no more.
#[test]
fn a_cancel_that_found_nothing_is_tried_again_while_it_is_needed() {
    if is_missing() {
        return;
    }
    let mut world = World::new(options(), config());
    let mut client = world.connect();
    client.write_all(&pings(1..2)).unwrap();
    assert_pongs(&world.read(&mut client, PONG_BYTES), 1..2);
    let id = SessionId::new(0, 0, 0);
    // As after a cancel of which the kernel said that it found nothing.
    let connection = world.event_loop.connections.get_mut(id).unwrap();
    connection.receiving = Receiving::Stopping;
    world.event_loop.handle(Completion::NotCancelled { id });
    world.turns_until("it is cancelled and goes on", |event_loop| {
        let connection = event_loop.connections.get_mut(id).unwrap();
        connection.receiving == Receiving::Armed
    });
    client.write_all(&pings(2..3)).unwrap();
    assert_pongs(&world.read(&mut client, PONG_BYTES), 2..3);
    assert_eq!(world.counters().not_cancelled, 1);
    // Of what is not under way, or no more, the kernel itself says so.
    world.event_loop.ring.cancel_send(id);
    world.turns_until("nothing is found", |event_loop| {
        event_loop.counters().not_cancelled == 2
    });
    world.turn();
    world.turn();
    drop(client);
    world.turns_until("closed", |event_loop| event_loop.ring.open_files == 0);
    world.event_loop.ring.cancel_receive(id);
    world.turns_until("nobody is found", |event_loop| {
        event_loop.counters().not_cancelled == 3
    });
    world.turn();
    world.turn();
    assert_eq!(world.counters().not_cancelled, 3, "not tried again");
}
