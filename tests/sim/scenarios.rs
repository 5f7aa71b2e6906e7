//! Histories worth a name: each tries one kind of trouble at every step at which it
//! can come.

use leasehold::dlm::Operation;
use leasehold::mesh::MeshCounters;
use leasehold::protocol::Reply;

use crate::clocks::{Rates, WITHIN_MARGIN_PPM};
use crate::dlm_talk::DlmTalk;
use crate::link::{Conversation, Server};
use crate::options::{Options, Style};
use crate::shrink::try_play;
use crate::talk::Ask;
use crate::world::World;

const STYLES: [Style; 2] = [Style::Copying, Style::Owning];

/// Owned by loop 1, where a scenario has two loops.
const REMOTE: usize = 1;

const LEASE_MS: u32 = 20_000;

fn world(ring_capacity: usize, style: Style) -> World {
    World::new(Options::plain(2, ring_capacity, style))
}

impl World {
    /// A session sends one request for a key.
    fn request(&mut self, link: usize, ask: Ask, key: usize) -> u64 {
        let owner = self.fresh_owner();
        self.ask(link, ask, owner, key);
        self.send_all(link);
        owner
    }

    fn send_all(&mut self, link: usize) {
        let (unsent, now) = (self.env.links[link].unsent(), self.env.now);
        self.env.links[link].send(unsent, now, &mut self.env.ledger);
    }

    fn acquire(&mut self, link: usize, wait_ms: u32, key: usize) -> u64 {
        let lease_ms = LEASE_MS;
        self.request(link, Ask::Acquire { wait_ms, lease_ms }, key)
    }

    fn release_latest(&mut self, link: usize, key: usize) {
        let token = self.env.ledger.token_of(key, 0).expect("it is held");
        self.request(link, Ask::Release { token }, key);
    }

    /// A session of loop `to` that holds the key.
    fn holder(&mut self, to: u16, key: usize) -> usize {
        let link = self.connect_native(to);
        self.acquire(link, 0, key);
        self.rest();
        assert_eq!(self.grants_of(link), 1, "the key was free");
        link
    }

    fn grants_of(&mut self, link: usize) -> usize {
        let heard = &self.talk(link).heard;
        let is_grant = |reply: &&Reply| matches!(reply, Reply::Acquired { .. });
        heard.iter().filter(is_grant).count()
    }

    /// Takes so many small steps. Returns whether all of them could be taken.
    fn small_steps(&mut self, count: usize) -> bool {
        (0..count).all(|_| self.small_step())
    }

    fn mesh(&self) -> MeshCounters {
        let mut sum = MeshCounters::default();
        for host in &self.hosts {
            let counters = host.worker.mesh_counters();
            sum.refused += counters.refused;
            sum.spilled += counters.spilled;
        }
        sum
    }
}

/// Plays a scenario for 0, 1, 2, … steps before its trouble, until the world rests
/// before so many were taken.
fn at_every_step(play: impl Fn(usize) -> bool) {
    let last = (0..).find(|&step| !play(step));
    assert!(last > Some(10), "its life has more steps than that");
}

/// Scenario 51: rings full in both directions, while sessions end in all ways.
#[test]
fn full_rings_let_everything_through() {
    for style in STYLES {
        for ring_capacity in [1, 2] {
            let mut world = world(ring_capacity, style);
            let links: Vec<(usize, usize)> = (0..16)
                .map(|index| {
                    let to = index % 2;
                    (world.connect_native(to), usize::from(1 - to))
                })
                .collect();
            for &(link, key) in &links {
                for _ in 0..10 {
                    world.acquire(link, 3_000, key);
                    world.request(link, Ask::Query, key);
                    world.request(link, Ask::Release { token: 7 }, key);
                }
            }
            world.small_steps(400);
            let MeshCounters {
                refused, spilled, ..
            } = world.mesh();
            assert!(refused > 0 && spilled > 0, "{refused} and {spilled}");
            for (index, &(link, _)) in links.iter().enumerate() {
                match index % 3 {
                    0 => world.end(link, true),
                    1 => world.end(link, false),
                    _ => {}
                }
                world.small_steps(5);
            }
            world.check_quiet();
            world.check_end();
        }
    }
}

/// Scenario 50: a session moves with requests behind its Hello, whichever bytes come
/// before, during and after the move.
#[test]
fn a_move_keeps_all_bytes_in_order_at_every_split() {
    for style in STYLES {
        for gap in [0, 6, 40] {
            for cut in 0.. {
                let mut world = world(4, style);
                let link = world.connect_native(0);
                let owner = world.fresh_owner();
                let hello = Ask::Hello {
                    flags: 0,
                    wanted_loop: 1,
                };
                world.talk(link).ask(hello, owner, None);
                let acquire = Ask::Acquire {
                    wait_ms: 0,
                    lease_ms: LEASE_MS,
                };
                for key in [0, 1] {
                    for ask in [acquire.clone(), Ask::Query] {
                        let owner = world.fresh_owner();
                        world.ask(link, ask, owner, key);
                    }
                }
                let owner = world.fresh_owner();
                world.talk(link).ask(Ask::Ping, owner, None);
                if cut > world.env.links[link].unsent() {
                    break;
                }
                let now = world.env.now;
                world.env.links[link].send(cut, now, &mut world.env.ledger);
                world.small_steps(gap);
                world.send_all(link);
                world.end(link, true);
                world.rest();
                assert_eq!(world.env.links[link].server, Server::Closed);
                assert_eq!(world.env.moves, 1);
                let heard = &world.talk(link).heard;
                assert_eq!(heard.len(), 6, "cut at {cut}: {heard:?}");
                assert!(matches!(heard[0], Reply::Welcome(_)), "{heard:?}");
                for key in [0, 1] {
                    let states = heard.iter().filter(|reply| {
                        matches!(reply, Reply::State { held: true, .. })
                            && reply.owner() == 4 + 2 * key
                    });
                    assert_eq!(states.count(), 1, "it holds key {key}: {heard:?}");
                }
                assert_eq!(world.grants_of(link), 2);
                if cut % 16 == 0 {
                    world.check_end();
                }
            }
        }
    }
}

/// Scenarios 1, 8 and 25: a session ends, in order or not, at every step of the life of
/// its acquire for another loop's key. What it was not told of is free at once.
#[test]
fn a_session_may_end_at_every_step_of_a_remote_acquire() {
    for style in STYLES {
        for in_order in [true, false] {
            for (is_held, flags) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
                at_every_step(|steps| {
                    let mut world = world(1, style);
                    let holder = is_held.then(|| world.holder(1, REMOTE));
                    let link = world.connect_native(0);
                    let owner = world.fresh_owner();
                    let hello = Ask::Hello {
                        flags,
                        wanted_loop: 0xFFFF,
                    };
                    world.talk(link).ask(hello, owner, None);
                    world.acquire(link, 5_000, REMOTE);
                    let is_within = world.small_steps(steps);
                    world.end(link, in_order);
                    world.small_steps(steps % 7);
                    if let Some(holder) = holder {
                        world.release_latest(holder, REMOTE);
                    }
                    world.check_quiet();
                    let engine = world.hosts[REMOTE].worker.engine();
                    assert_eq!(engine.waiting(), 0, "it has left the queue");
                    let is_kept = engine.held() == 1;
                    let was_told = world.grants_of(link) == 1;
                    let is_released = in_order && flags == 1;
                    assert_eq!(is_kept, was_told && !is_released, "after {steps} steps");
                    if steps % 8 == 0 {
                        world.check_end();
                    }
                    is_within
                });
            }
        }
    }
}

/// Scenarios 2 and 11: a cancel, and a release that would grant the acquire, come at
/// every step of its life.
#[test]
fn a_cancel_may_come_at_every_step_of_a_remote_acquire() {
    for style in STYLES {
        for apart in [0, 2, 5, 11] {
            at_every_step(|steps| {
                let mut world = world(1, style);
                let holder = world.holder(1, REMOTE);
                let link = world.connect_native(0);
                let target = world.acquire(link, 5_000, REMOTE);
                let is_within = world.small_steps(steps);
                world.request(link, Ask::Cancel { target }, REMOTE);
                world.small_steps(apart);
                world.release_latest(holder, REMOTE);
                world.check_quiet();
                let heard = &world.talk(link).heard;
                let cancelled = match heard[..] {
                    [Reply::TimedOut { .. }, Reply::CancelDone { cancelled, .. }] => {
                        assert!(cancelled, "after {steps} steps: {heard:?}");
                        true
                    }
                    [Reply::Acquired { .. }, Reply::CancelDone { cancelled, .. }] => {
                        assert!(!cancelled, "after {steps} steps: {heard:?}");
                        false
                    }
                    _ => panic!("after {steps} steps: {heard:?}"),
                };
                let held = world.hosts[REMOTE].worker.engine().held();
                assert_eq!(held, u32::from(!cancelled));
                if steps % 8 == 0 {
                    world.check_end();
                }
                is_within
            });
        }
    }
}

/// Rule 6: a grant that comes to a session that is gone passes on at once.
#[test]
fn a_grant_to_a_gone_session_goes_to_the_next() {
    for style in STYLES {
        let mut world = world(4, style);
        let holder = world.holder(1, REMOTE);
        let [gone, next] = [(); 2].map(|()| {
            let link = world.connect_native(0);
            world.acquire(link, 5_000, REMOTE);
            world.rest();
            link
        });
        world.stop(0, 10_000);
        world.release_latest(holder, REMOTE);
        while world.small_step() {}
        let granted = world.hosts[REMOTE].worker.engine().counters().granted;
        assert_eq!(granted, 2, "the other loop has not heard of it");
        world.end(gone, false);
        // Its end is seen before the grant is: first in a turn come the sockets.
        world.rest();
        assert_eq!((world.grants_of(gone), world.grants_of(next)), (0, 1));
        let counters = world.hosts[REMOTE].worker.engine().counters();
        assert_eq!(counters.lost_grants, 1);
        world.check_quiet();
        world.check_end();
    }
}

/// Scenario 47: a DLM lock is never taken back, whenever its connection breaks.
#[test]
fn a_dlm_lock_outlives_its_connection_at_every_step() {
    for style in STYLES {
        for in_order in [true, false] {
            at_every_step(|steps| {
                let mut world = world(1, style);
                let name = world.keys[REMOTE].clone();
                let operation = Operation::Lock { ttl_ms: 5_000 };
                let talk = DlmTalk::new(operation, (REMOTE, &name), "me".to_owned(), false);
                let link = world.connect(Conversation::Dlm(Box::new(talk)), 0);
                world.send_all(link);
                let is_within = world.small_steps(steps);
                world.end(link, in_order);
                world.rest();
                assert_eq!(world.env.links[link].server, Server::Closed);
                let engine = world.hosts[REMOTE].worker.engine();
                let granted = engine.counters().dlm_granted;
                assert!(
                    granted == 1 || !in_order,
                    "a complete request is carried out"
                );
                assert_eq!(u64::from(engine.held()), granted, "after {steps} steps");
                let native = world.connect_native(0);
                world.acquire(native, 0, REMOTE);
                world.rest();
                assert_eq!(world.grants_of(native) as u64, 1 - granted);
                world.check_end();
                is_within
            });
        }
    }
}

/// Whether the ledger notices that a lease is given on to the next while its holder,
/// whose clock is so much faster, relies on it: granted for `lease_ms`, or extended to it.
fn relies_too_long(rates: Rates, fast_ppm: i64, lease_ms: u32, is_extended: bool) -> bool {
    let play = |world: &mut World| {
        let holder = world.connect_native(0);
        world.env.links[holder].set_clock(rates.clock_of(fast_ppm));
        let granted_ms = if is_extended { 700 } else { lease_ms };
        let acquire = Ask::Acquire {
            wait_ms: 0,
            lease_ms: granted_ms,
        };
        world.request(holder, acquire, REMOTE);
        world.rest();
        let next = world.connect_native(1);
        world.acquire(next, 60_000, REMOTE);
        world.rest();
        if is_extended {
            let token = world.env.ledger.token_of(REMOTE, 0).expect("it is held");
            world.request(holder, Ask::Extend { lease_ms, token }, REMOTE);
        }
        let over = world.env.now.plus_millis(60_000);
        world.pass_until(over);
        assert_eq!((world.grants_of(holder), world.grants_of(next)), (1, 1));
    };
    match try_play(&Options::plain(2, 4, Style::Copying), play) {
        Ok(()) => false,
        Err((_, fault)) => {
            let message = fault.message();
            assert!(message.contains("two hold key"), "{message}");
            true
        }
    }
}

/// The lease bound: no client of any rate within the margin relies on a lease that was
/// given on. Without the margin, or with a clock farther off, slow ones do.
#[test]
fn only_clocks_that_the_margin_is_for_never_rely_on_a_lease_too_long() {
    let within = Rates::WITHIN_MARGIN;
    let without = Rates {
        keeps_margin: false,
        ..within
    };
    let slowest = -WITHIN_MARGIN_PPM;
    for is_extended in [false, true] {
        for lease_ms in [1_000, 5_000, 20_000, 59_000] {
            for fast_ppm in [slowest, slowest / 2, 0, -slowest] {
                assert!(!relies_too_long(within, fast_ppm, lease_ms, is_extended));
            }
            assert!(relies_too_long(within, 3 * slowest, lease_ms, is_extended));
            assert!(relies_too_long(without, 2 * slowest, lease_ms, is_extended));
            assert!(!relies_too_long(without, 0, lease_ms, is_extended));
        }
        assert!(relies_too_long(without, slowest, 20_000, is_extended));
        assert!(!relies_too_long(without, -slowest, 20_000, is_extended));
    }
}

/// What random histories check of clocks fails for the same two reasons.
#[test]
fn random_histories_notice_clocks_that_the_margin_is_not_for() {
    let without_margin = Rates {
        keeps_margin: false,
        ..Rates::WITHIN_MARGIN
    };
    let farther_off = Rates {
        most_ppm: 2 * WITHIN_MARGIN_PPM,
        ..Rates::WITHIN_MARGIN
    };
    for rates in [without_margin, farther_off] {
        let is_noticed = |seed: u64| {
            let options = Options::of_seed(seed).with_rates(rates);
            try_play(&options, crate::play_in).is_err()
        };
        assert!((1..=crate::RUNS).any(is_noticed), "{rates:?}");
    }
}
