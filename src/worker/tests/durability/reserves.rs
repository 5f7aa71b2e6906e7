//! When D falls again, and when tokens are reserved.

use super::*;

mod d_falls {
    use super::*;

    fn world_with(d_ms: u64) -> World {
        World::new(config_with(durable(d_ms)))
    }

    fn due(world: &World) -> Option<Time> {
        world.worker.held.poll_timeout()
    }

    /// To one nanosecond before `at`, then to it.
    fn asks_before_and_at(world: &mut World, at: Time) -> (Vec<Ask>, Vec<Ask>) {
        world.now = Time::from_nanos(at.as_nanos() - 1);
        world.turns_until_idle();
        let before = world.asks();
        world.now = at;
        world.turns_until_idle();
        (before, world.asks())
    }

    #[test]
    fn when_it_has_passed_since_the_start_step_by_step() {
        let mut world = world_with(8_192);
        let mut at = world.now;
        let mut d_ms = 8_192;
        while d_ms > 1_024 {
            at = at.plus_millis(d_ms);
            assert_eq!(
                world.worker.poll_timeout(),
                Some(at),
                "the turn is due then"
            );
            d_ms /= 2;
            let asks = asks_before_and_at(&mut world, at);
            assert_eq!(asks, (vec![], vec![lower(d_ms)]));
        }
        assert_eq!(world.worker.poll_timeout(), None, "it is the least");
        world.pass(1_000_000);
        assert_eq!(world.asks(), []);
    }

    #[test]
    fn to_powers_of_two_from_wherever_it_was() {
        for (stored_ms, next_ms) in [(CAP_MS, 262_144), (600_000, 524_288), (1_500, 1_024)] {
            let mut world = world_with(stored_ms);
            let at = world.now.plus_millis(stored_ms);
            let asks = asks_before_and_at(&mut world, at);
            assert_eq!(asks, (vec![], vec![lower(next_ms)]));
        }
        for least_ms in [0, 1, 1_024] {
            assert_eq!(due(&world_with(least_ms)), None);
        }
    }

    /// Those who use less than the next lower D leave it to fall, the others put it off.
    #[test]
    fn when_it_has_passed_since_a_lease_that_needs_it_was_used() {
        type Use = fn(&mut World, SessionId);
        let uses: [(&str, Use, bool); 8] = [
            (
                "grant",
                |world, id| {
                    world.ask_and_turn(id, &[ask_for(1, 4_097, b"k")]);
                },
                true,
            ),
            (
                "short grant",
                |world, id| {
                    world.ask_and_turn(id, &[ask_for(1, 4_096, b"k")]);
                },
                false,
            ),
            (
                "extension",
                |world, id| {
                    world.ask_and_turn(id, &[extend(1, 100, 4_097, b"native")]);
                },
                true,
            ),
            (
                "short extension",
                |world, id| {
                    world.ask_and_turn(id, &[extend(1, 100, 4_096, b"native")]);
                },
                false,
            ),
            (
                "relock",
                |world, _| {
                    world.begin_dlm(&lock_for("A", 4_097, "dlm"));
                },
                true,
            ),
            (
                "put",
                |world, _| {
                    world.begin_dlm(&put_for("A", 4_097, "dlm"));
                },
                true,
            ),
            (
                "put of data",
                |world, _| {
                    world.begin_dlm(&put_for("A", 4_097, "data"));
                },
                false,
            ),
            (
                "query",
                |world, id| {
                    world.ask_and_turn(id, &[query(1, b"native")]);
                },
                false,
            ),
        ];
        for (name, use_it, puts_off) in uses {
            let mut world = world_with(8_192);
            let start = world.now;
            let id = world.connect();
            world.ask_and_turn(id, &[ask_for(9, 1_000, b"native")]);
            world.begin_dlm(&lock_for("A", 1_000, "dlm"));
            world.pass(900);
            use_it(&mut world, id);
            let since = if puts_off {
                start.plus_millis(900)
            } else {
                start
            };
            assert_eq!(due(&world), Some(since.plus_millis(8_192)), "{name}");
        }
    }

    /// What was used in the last moment before it falls counts for the next lower D.
    #[test]
    fn never_two_steps_at_once() {
        let mut world = world_with(8_192);
        let id = world.connect();
        world.pass(8_191);
        // Not longer than 4,096 ms: it does not keep D from falling there.
        let sent = world.ask_and_turn(id, &[ask_for(1, 4_096, b"k")]);
        assert_eq!(sent, [acquired(1, 100, 0)]);
        let lease_end = world.now.plus_millis(4_096);
        world.pass(1);
        assert_eq!(world.asks(), [lower(4_096)]);
        let next = due(&world).unwrap();
        assert!(next >= lease_end, "the lease is over by then");
        let asks = asks_before_and_at(&mut world, next);
        assert_eq!(asks, (vec![], vec![lower(2_048)]));
    }

    #[test]
    fn not_while_replies_wait_that_need_more() {
        let mut world = world_with(2_048);
        let id = world.connect();
        world.pass(1_000);
        world.ask_and_turn(id, &[ask_for(1, 60_000, b"k")]);
        assert_eq!(world.asks(), [raise(65_536)]);
        assert_eq!(due(&world), None);
        world.pass(100_000);
        assert_eq!(world.asks(), []);
        world.news(News::Raised);
        assert_eq!(world.replies(id), [acquired(1, 100, 0)]);
        // The lease began when it was granted: nothing keeps D up any more.
        assert_eq!(world.asks(), [lower(32_768)]);
        assert_eq!(due(&world), Some(world.now.plus_millis(32_768)));
    }

    #[test]
    fn not_while_replies_wait_for_records() {
        let mut world = world_with(2_048);
        world.begin_dlm(&lock_for("A", CAP_MS + 1, "k"));
        world.asks();
        world.pass(10_000);
        assert_eq!((due(&world), world.asks()), (None, vec![]));
        world.news(News::Recorded { up_to: 1 });
        assert_eq!(world.asks(), [lower(1_024)]);
    }

    #[test]
    fn and_is_raised_again_for_the_next_that_needs_it() {
        let mut world = world_with(8_192);
        let id = world.connect();
        world.pass(8_192);
        // The store hears of both, in this order.
        world.ask_and_turn(id, &[ask_for(1, 4_096, b"k")]);
        assert_eq!(world.asks(), [lower(4_096)]);
        let sent = world.ask_and_turn(id, &[ask_for(2, 4_096, b"l")]);
        assert_eq!(sent, [acquired(2, 101, 0)]);
        assert_eq!(world.ask_and_turn(id, &[ask_for(3, 4_097, b"m")]), []);
        assert_eq!(world.asks(), [raise(8_192)]);
        world.news(News::Raised);
        assert_eq!(world.replies(id), [acquired(3, 102, 0)]);
    }

    /// A lease that is used when D is about to fall: whichever comes first.
    #[test]
    fn not_when_it_is_used_at_that_very_moment() {
        let mut world = world_with(8_192);
        let id = world.connect();
        world.pass(8_192);
        let sent = world.ask_and_turn(id, &[ask_for(1, 8_192, b"k")]);
        assert_eq!(sent, [acquired(1, 100, 0)]);
        assert_eq!(world.asks(), []);
        assert_eq!(due(&world), Some(world.now.plus_millis(8_192)));
    }
}

mod tokens {
    use super::*;

    /// A hundred tokens are reserved, from 100 on.
    fn world() -> World {
        World::new(config_with(Durable {
            mark: 200,
            token_block: 100,
            ..durable(D_MS)
        }))
    }

    /// Takes tokens, one each, until one is refused or `count` were taken.
    fn take(world: &mut World, id: SessionId, count: u64) -> Vec<u64> {
        let mut tokens = Vec::new();
        for _ in 0..count {
            match world.ask_and_turn(id, &[ask_for(1, 1_000, b"k")])[..] {
                [Reply::Acquired { token, .. }] => {
                    tokens.push(token);
                    world.ask_and_turn(id, &[release(2, token, b"k")]);
                }
                [
                    Reply::Error {
                        code: OVERLOADED, ..
                    },
                ] => break,
                ref other => panic!("{other:?}"),
            }
        }
        tokens
    }

    #[test]
    fn are_reserved_when_half_a_block_is_left() {
        let mut world = world();
        let id = world.connect();
        assert_eq!(take(&mut world, id, 50), (100..150).collect::<Vec<_>>());
        assert_eq!(world.asks(), [], "as many again are left");
        take(&mut world, id, 1);
        let asks = world.asks();
        let [Ask::Reserve { mark }] = asks[..] else {
            panic!("{asks:?}");
        };
        assert_eq!(mark, 251, "a block more than the next");
        take(&mut world, id, 10);
        assert_eq!(world.asks(), [], "it is under way");
        world.news(News::Reserved { mark: 300 });
        assert_eq!(world.asks(), []);
        assert_eq!(take(&mut world, id, 200), (161..300).collect::<Vec<_>>());
    }

    #[test]
    fn at_the_mark_are_refused_until_there_are_more() {
        let mut world = world();
        let id = world.connect();
        let tokens = take(&mut world, id, 200);
        assert_eq!(tokens, (100..200).collect::<Vec<_>>());
        assert_eq!(world.asks(), [Ask::Reserve { mark: 300 }]);
        let lock = world.begin_dlm(&lock_for("A", 1_000, "k"));
        assert_eq!(world.status(lock), Some(Status::No));
        world.news(News::Reserved { mark: 300 });
        assert_eq!(take(&mut world, id, 1), [200]);
    }

    #[test]
    fn are_asked_for_again_when_they_could_not_be_reserved() {
        let mut world = world();
        let id = world.connect();
        take(&mut world, id, 200);
        world.asks();
        world.news(News::NotReserved);
        assert_eq!(world.asks(), [], "not at once");
        assert!(take(&mut world, id, 1).is_empty());
        world.pass(1_000);
        assert_eq!(world.asks(), [Ask::Reserve { mark: 300 }]);
        world.news(News::Reserved { mark: 300 });
        assert_eq!(take(&mut world, id, 1), [200]);
    }
}
