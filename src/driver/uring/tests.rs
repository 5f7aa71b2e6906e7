//! Every test plays the loop's turns itself, beside its clients, so that what a
//! test waits for is a state and never a time.

#![allow(clippy::unwrap_used)]

mod limits;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;

use clap::Parser;
use socket2::SockRef;

use super::setup::Way;
use super::*;
use crate::config::ServeArgs;
use crate::driver::loops::Loops;
use crate::driver::state::StartState;
use crate::driver::{identity_files, worker_config};
use crate::mesh;
use crate::protocol::{Reply, Request};
use crate::worker::{Worker, WorkerConfig};

/// Longest wait for a state that must come.
const PATIENCE_MS: u64 = 20_000;
/// Longest sleep of a turn that nothing ends.
const PAUSE: Duration = Duration::from_millis(5);

const PONG_BYTES: usize = 10;

/// Whether this kernel has no io_uring for a loop: then the test says that it is skipped.
fn is_missing() -> bool {
    match probe() {
        Ok(()) => false,
        Err(why) => {
            println!("skipped: {why}");
            true
        }
    }
}

fn options() -> RingOptions {
    RingOptions {
        submissions: 64,
        completions: 256,
        buffers: 64,
        buffer_bytes: 1024,
        files: 300,
        way: Way::Deferred,
    }
}

fn config() -> WorkerConfig {
    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: ServeArgs,
    }
    let command = Command::try_parse_from(["serve", "--state-dir", "none"]).unwrap();
    let config = command.args.into_config().unwrap();
    let state = StartState::open(&config).unwrap();
    worker_config(&config, None, &state).unwrap()
}

/// A loop and the way to it.
struct World {
    event_loop: UringLoop,
    address: std::net::SocketAddr,
}

impl World {
    fn new(options: RingOptions, config: WorkerConfig) -> World {
        let mut world = World::unstarted(options, config);
        world.event_loop.start().unwrap();
        world
    }

    fn unstarted(options: RingOptions, config: WorkerConfig) -> World {
        let (listener, address) = listen();
        let event_loop = new_loop(listener, options, config);
        World {
            event_loop,
            address,
        }
    }

    /// A client whose reads and writes never wait.
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    }

    fn turn(&mut self) {
        let sleep = self.event_loop.sleep_for();
        let sleep = sleep.map_or(PAUSE, |sleep| sleep.min(PAUSE));
        self.event_loop.turn(Some(sleep)).unwrap();
        self.event_loop.turn.worker.invariants();
    }

    fn turns_until(&mut self, what: &str, mut is_so: impl FnMut(&mut UringLoop) -> bool) {
        let give_up_at = clock::now().plus_millis(PATIENCE_MS);
        while !is_so(&mut self.event_loop) {
            assert!(clock::now() < give_up_at, "never: {what}");
            self.turn();
        }
    }

    /// Takes turns until `client` has `count` bytes.
    fn read(&mut self, client: &mut TcpStream, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.turns_until("enough bytes", |_| {
            assert!(!read_some(client, &mut bytes) || bytes.len() >= count);
            bytes.len() >= count
        });
        assert_eq!(bytes.len(), count);
        bytes
    }

    /// Takes turns until the server has ended `client`'s connection.
    fn read_to_end(&mut self, client: &mut TcpStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.turns_until("the end", |_| read_some(client, &mut bytes));
        bytes
    }

    fn counters(&self) -> RingCounters {
        self.event_loop.counters()
    }

    fn sessions(&self) -> usize {
        self.event_loop.turn.worker.session_count()
    }
}

/// A listener whose connections' sockets are full after a few replies: they have
/// their options from it.
fn listen() -> (Listener, std::net::SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let socket = SockRef::from(&listener);
    socket.set_send_buffer_size(16 * 1024).unwrap();
    let listener = mio::net::TcpListener::from_std(listener);
    (Listener::Tcp(listener), address)
}

fn new_loop(listener: Listener, options: RingOptions, config: WorkerConfig) -> UringLoop {
    new_loops(vec![listener], options, &config).remove(0)
}

/// A loop for each listener, all of one server.
fn new_loops(
    listeners: Vec<Listener>,
    options: RingOptions,
    config: &WorkerConfig,
) -> Vec<UringLoop> {
    let count = u16::try_from(listeners.len()).unwrap();
    let loops = Arc::new(Loops::new(count, 1 << 20).unwrap());
    let identities = identity_files::start("/nonexistent".into(), &loops, count).unwrap();
    let ports = mesh::build(count, 64);
    let mut event_loops = Vec::new();
    for (((loop_index, listener), port), identities) in
        (0..).zip(listeners).zip(ports).zip(identities)
    {
        let config = WorkerConfig {
            loops: count,
            loop_index,
            ..config.clone()
        };
        let worker = Worker::new(config, port);
        let turn = Turn::new(worker, Arc::clone(&loops), identities, None, Duration::ZERO);
        let listeners = vec![(Protocol::Native, listener)];
        event_loops.push(UringLoop::new(turn, listeners, options).unwrap());
    }
    event_loops
}

fn pings(owners: std::ops::Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for owner in owners {
        Request::Ping { owner, key: b"" }.encode(&mut bytes);
    }
    bytes
}

/// Checks that `bytes` are the pongs to [`pings`] in order.
fn assert_pongs(bytes: &[u8], owners: std::ops::Range<u64>) {
    let mut expected = Vec::new();
    for owner in owners {
        Reply::Pong { owner }.encode(&mut expected);
    }
    assert!(bytes == expected, "{} bytes", bytes.len());
}

/// Sessions that each send a burst at once, and get every answer.
fn serve_bursts(world: &mut World, sessions: usize, pings_each: u64) {
    let mut clients = Vec::new();
    for _ in 0..sessions {
        let mut client = world.connect();
        client.write_all(&pings(1..pings_each + 1)).unwrap();
        clients.push(client);
        if clients.len() % 64 == 0 {
            // The listener's backlog holds no more.
            world.turn();
        }
    }
    for client in &mut clients {
        let replies = world.read(client, pings_each as usize * PONG_BYTES);
        assert_pongs(&replies, 1..pings_each + 1);
    }
    let counters = *world.event_loop.turn.worker.session_counters();
    assert_eq!(counters.requests, sessions as u64 * pings_each);
    assert_eq!((counters.broken, counters.closed_on_error), (0, 0));
    drop(clients);
    world.turns_until("all closed", |event_loop| {
        event_loop.turn.worker.session_count() == 0
    });
}

/// As older kernels do it.
#[test]
fn every_way_of_a_ring_serves() {
    if is_missing() {
        return;
    }
    for way in [Way::OneIssuer, Way::Plain] {
        let mut world = World::new(RingOptions { way, ..options() }, config());
        serve_bursts(&mut world, 20, 300);
    }
}

/// Scenario 23, first half: a client that writes and does not read fills its
/// socket, then is not read any more; once it reads, it gets every answer.
#[test]
fn short_sends_are_finished_and_paused_input_is_resumed() {
    if is_missing() {
        return;
    }
    for buffer_bytes in [64, 4096] {
        let mut config = config();
        config.output_soft_limit_bytes = 10_000;
        let mut world = World::new(
            RingOptions {
                buffer_bytes,
                ..options()
            },
            config,
        );
        let mut client = world.connect();
        let asked = pings(1..200_001);
        let mut written = 0;
        world.turns_until("replies are stuck, input is paused", |event_loop| {
            write_some(&mut client, &asked, &mut written);
            let counters = event_loop.counters();
            counters.short_sends > 0 && counters.receives_paused > 0
        });
        let mut replies = Vec::new();
        world.turns_until("every answer", |_| {
            write_some(&mut client, &asked, &mut written);
            assert!(!read_some(&mut client, &mut replies), "closed");
            replies.len() == 200_000 * PONG_BYTES
        });
        assert_pongs(&replies, 1..200_001);
    }
}

/// A session that is given up on: whatever the kernel still does for it is ended,
/// its slot and its buffer come back, and what comes late reaches nobody.
#[test]
fn a_close_ends_what_the_kernel_still_does() {
    if is_missing() {
        return;
    }
    // A send that is stuck alone, its session's input being paused, and one beside a
    // receive.
    for (soft_limit_bytes, operations) in [(10_000, 1), (10_000_000, 2)] {
        let mut config = config();
        config.output_soft_limit_bytes = soft_limit_bytes;
        config.output_hard_limit_bytes = 20_000_000;
        config.peer_timeout_ms = 50;
        let mut world = World::new(options(), config);
        for round in 1..=3 {
            let before = world.counters();
            let mut client = world.connect();
            SockRef::from(&client).set_recv_buffer_size(4096).unwrap();
            let asked = pings(1..100_001);
            let mut written = 0;
            world.turns_until("the client is given up on", |event_loop| {
                if event_loop.counters().receives_paused == before.receives_paused {
                    write_some(&mut client, &asked, &mut written);
                }
                let given_up = event_loop.turn.worker.session_counters().stalled == round;
                given_up && event_loop.turn.worker.session_count() == 0
            });
            assert_eq!(world.counters().cancelled, before.cancelled + operations);
            let mut next = world.connect();
            next.write_all(&pings(7..8)).unwrap();
            assert_pongs(&world.read(&mut next, PONG_BYTES), 7..8);
            drop(next);
            world.turns_until("nothing is open", |event_loop| {
                event_loop.ring.open_files == 0
            });
        }
    }
}

#[test]
fn a_close_ends_a_receive() {
    if is_missing() {
        return;
    }
    let mut config = config();
    config.linger_bytes = 100;
    config.linger_ms = 10 * PATIENCE_MS;
    let mut world = World::new(options(), config);
    let mut client = world.connect();
    client.write_all(b"Z").unwrap();
    let refusal = world.read_to_end(&mut client);
    assert_eq!((refusal[0], refusal.len()), (b'E', 11));
    assert_eq!(world.sessions(), 1, "it lingers");
    client.write_all(&[b'x'; 101]).unwrap();
    world.turns_until("closed", |event_loop| event_loop.ring.open_files == 0);
    assert_eq!(world.sessions(), 0);
    assert_eq!(world.counters().cancelled, 1);
}

/// Scenario 49: what is timed by a clock that counts suspend is slept for in short
/// pieces by one that does not.
#[test]
fn a_loop_never_sleeps_long_while_anything_is_timed() {
    if is_missing() {
        return;
    }
    let mut world = World::new(options(), config());
    assert_eq!(world.event_loop.sleep_for(), None, "nothing is timed");
    let mut client = world.connect();
    let mut acquire = Vec::new();
    Request::Acquire {
        owner: 1,
        wait_ms: 0,
        lease_ms: 200_000,
        key: b"k",
    }
    .encode(&mut acquire);
    client.write_all(&acquire).unwrap();
    world.turns_until("a lease runs", |event_loop| {
        event_loop.turn.worker.engine().held() == 1
    });
    // The send is settled by the next.
    world.turn();
    let sleep = world.event_loop.sleep_for().unwrap();
    assert_eq!(sleep, Duration::from_millis(100));
}

/// A session that ends while its sending side is being shut down, which the kernel
/// does on a thread of its own, is closed after that.
#[test]
fn a_close_waits_for_a_shutdown() {
    if is_missing() {
        return;
    }
    let mut config = config();
    config.linger_bytes = 100;
    config.linger_ms = 10 * PATIENCE_MS;
    let mut world = World::new(options(), config);
    for round in 0..50 {
        let id = SessionId::new(0, round, 0);
        let mut client = world.connect();
        client.write_all(b"Z").unwrap();
        world.turns_until("it is being shut down", |event_loop| {
            let connection = event_loop.connections.get_mut(id);
            connection.is_some_and(|connection| connection.shutting_down)
        });
        client.write_all(&[b'x'; 101]).unwrap();
        world.turns_until("closed", |event_loop| event_loop.ring.open_files == 0);
        assert_eq!(world.sessions(), 0);
    }
}

/// What the kernel says of a session that is gone does nothing to the next one in
/// its slot.
#[test]
fn a_late_completion_reaches_nobody() {
    if is_missing() {
        return;
    }
    let mut world = World::new(options(), config());
    let client = world.connect();
    world.turns_until("one is served", |event_loop| {
        event_loop.turn.worker.session_count() == 1
    });
    drop(client);
    world.turns_until("it is gone", |event_loop| event_loop.ring.open_files == 0);
    let mut next = world.connect();
    next.write_all(&pings(1..2)).unwrap();
    assert_pongs(&world.read(&mut next, PONG_BYTES), 1..2);

    let (gone, now) = (SessionId::new(0, 0, 0), SessionId::new(0, 1, 0));
    assert!(world.event_loop.connections.get_mut(now).is_some());
    let outcome = Err(Errno::NOTCONN);
    for late in [
        Completion::ShutDown { id: gone, outcome },
        Completion::NotCancelled { id: gone },
        Completion::Closed { id: gone },
    ] {
        world.event_loop.handle(late);
        world.turn();
    }
    next.write_all(&pings(2..3)).unwrap();
    assert_pongs(&world.read(&mut next, PONG_BYTES), 2..3);
    assert_eq!(world.sessions(), 1);
}

/// Each has its own ring, listener and thread.
#[test]
fn loops_serve_side_by_side() {
    if is_missing() {
        return;
    }
    let (listeners, addresses): (Vec<_>, Vec<_>) = (0..3).map(|_| listen()).unzip();
    let event_loops = new_loops(listeners, options(), &config());
    let loops = Arc::clone(&event_loops[0].turn.loops);
    let serving: Vec<_> = event_loops
        .into_iter()
        .map(|mut event_loop| std::thread::spawn(move || event_loop.run()))
        .collect();
    for _ in 0..20 {
        // From each listener most of them move to another loop.
        let mut clients: Vec<TcpStream> = addresses
            .iter()
            .chain(&[addresses[0]; 5])
            .map(|address| TcpStream::connect(address).unwrap())
            .collect();
        for client in &mut clients {
            client.write_all(&pings(1..101)).unwrap();
        }
        for client in &mut clients {
            let mut replies = vec![0; 100 * PONG_BYTES];
            client.read_exact(&mut replies).unwrap();
            assert_pongs(&replies, 1..101);
        }
    }
    loops.drain(0);
    for thread in serving {
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn a_client_that_ends_its_side_gets_what_it_is_owed() {
    if is_missing() {
        return;
    }
    let mut world = World::new(options(), config());
    let mut client = world.connect();
    client.write_all(&pings(1..101)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let replies = world.read_to_end(&mut client);
    assert_pongs(&replies, 1..101);
    world.turns_until("closed", |event_loop| event_loop.ring.open_files == 0);
    assert_eq!(
        world
            .event_loop
            .turn
            .worker
            .session_counters()
            .ended_by_client,
        1
    );
}

/// A send that the kernel finishes says nothing; a loop that sleeps without end must
/// still do what waits for it: close, or read on.
#[test]
fn what_waits_for_a_send_is_done_before_the_loop_sleeps() {
    if is_missing() {
        return;
    }
    let mut config = config();
    config.output_soft_limit_bytes = 100;
    let (listener, address) = listen();
    let mut event_loop = new_loop(listener, options(), config);
    let loops = Arc::clone(&event_loop.turn.loops);
    let serving = std::thread::spawn(move || event_loop.run());
    for pings_each in [1, 20, 2_000] {
        let mut client = TcpStream::connect(address).unwrap();
        client
            .set_read_timeout(Some(Duration::from_millis(PATIENCE_MS)))
            .unwrap();
        client.write_all(&pings(1..pings_each + 1)).unwrap();
        let mut replies = vec![0; pings_each as usize * PONG_BYTES];
        client.read_exact(&mut replies).unwrap();
        assert_pongs(&replies, 1..pings_each + 1);
        client.write_all(&pings(1..pings_each + 1)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        replies.clear();
        client.read_to_end(&mut replies).unwrap();
        assert_pongs(&replies, 1..pings_each + 1);
    }
    loops.drain(0);
    serving.join().unwrap().unwrap();
}

#[test]
fn unix_listeners_are_served() {
    if is_missing() {
        return;
    }
    let name = format!("leasehold/test/{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = Listener::Unix(mio::net::UnixListener::from_std(listener));
    let mut event_loop = new_loop(listener, options(), config());
    let loops = Arc::clone(&event_loop.turn.loops);
    let serving = std::thread::spawn(move || event_loop.run());
    let mut client = UnixStream::connect_addr(&address).unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(PATIENCE_MS)))
        .unwrap();
    client.write_all(&pings(1..1_001)).unwrap();
    let mut replies = vec![0; 1_000 * PONG_BYTES];
    client.read_exact(&mut replies).unwrap();
    assert_pongs(&replies, 1..1_001);
    // Sleeping without end, the loop hears of its drain.
    loops.drain(0);
    assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), 0);
    drop(client);
    serving.join().unwrap().unwrap();
    assert!(UnixStream::connect_addr(&address).is_err());
}

/// A loop that ends before its peers lets go of them, although the kernel was
/// still sending and receiving.
#[test]
fn a_loop_that_ends_early_leaves_nothing_behind() {
    if is_missing() {
        return;
    }
    let mut config = config();
    config.output_soft_limit_bytes = 10_000;
    let mut world = World::new(options(), config);
    let mut idle = world.connect();
    let mut stuck = world.connect();
    SockRef::from(&stuck).set_recv_buffer_size(4096).unwrap();
    let (asked, mut written) = (pings(1..100_001), 0);
    world.turns_until("a send is stuck", |event_loop| {
        write_some(&mut stuck, &asked, &mut written);
        event_loop.counters().short_sends > 0 && event_loop.turn.worker.session_count() == 2
    });
    drop(world);
    // The kernel lets go of a ring's sockets some time after the ring.
    let give_up_at = clock::now().plus_millis(PATIENCE_MS);
    while !read_some(&mut idle, &mut Vec::new()) {
        assert!(clock::now() < give_up_at, "never: the end");
        std::thread::yield_now();
    }
}

/// What a client's socket takes of `all` from `written` on.
fn write_some(client: &mut TcpStream, all: &[u8], written: &mut usize) {
    if *written == all.len() {
        return;
    }
    match client.write(&all[*written..]) {
        Ok(count) => *written += count,
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
    }
}

/// Takes what has come; returns whether the connection is over.
fn read_some(client: &mut TcpStream, bytes: &mut Vec<u8>) -> bool {
    match client.read_to_end(bytes) {
        Ok(_) => true,
        // Closed with bytes of ours unread.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    }
}
