//! What becomes of held replies when their session, or the server, ends, and when there
//! are too many of them.

use super::*;

mod sessions_end {
    use super::*;

    #[test]
    fn in_order_behind_what_they_are_owed() {
        let mut world = world();
        let id = world.connect();
        let requests = [
            ask_for(1, 5_000, b"k"),
            acquire_for(2, 9_000, 1_000, b"k"),
            ask_for(3, 5_000, b"l"),
        ];
        world.ask_and_turn(id, &requests);
        world.asks();
        world.end(id, PeerEnd::Fin);
        assert_eq!(world.replies(id), [Reply::TimedOut { owner: 2 }]);
        assert_eq!(world.closed, []);
        world.news(News::Raised);
        assert_eq!(
            world.replies(id),
            [acquired(1, 100, 0), acquired(3, 101, 0)]
        );
        assert_eq!(world.closed, [id]);
        assert!(world.is_held(b"k"), "it runs to the end of its lease");
        assert_eq!(world.worker.session_count(), 0);
    }

    #[test]
    fn in_order_behind_refusals() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 5_000, b"k")]);
        world.asks();
        world.end(id, PeerEnd::Fin);
        world.news(News::NotRaised);
        assert_eq!(world.replies(id), [error(1, OVERLOADED)]);
        assert_eq!(world.closed, [id]);
        assert!(!world.is_held(b"k"));
    }

    /// Each when its own replies are sent, whatever others still wait for: at once if it
    /// is owed none.
    #[test]
    fn each_with_its_own_replies() {
        let mut world = world();
        let (first, second, third) = (world.connect(), world.connect(), world.connect());
        world.ask_and_turn(first, &[ask_for(1, 5_000, b"k")]);
        world.asks();
        world.ask_and_turn(second, &[ask_for(1, 60_000, b"l")]);
        for id in [first, second, third] {
            world.end(id, PeerEnd::Fin);
        }
        assert_eq!(world.closed, [third]);
        world.news(News::Raised);
        assert_eq!(world.closed, [third, first]);
        assert_eq!(world.replies(second), []);
        world.asks();
        world.news(News::Raised);
        assert_eq!(world.replies(second), [acquired(1, 101, 0)]);
        assert_eq!(world.closed, [third, first, second]);
    }

    /// Rule 6: nobody was told. Once that is certain.
    #[test]
    fn by_a_reset_and_native_grants_are_given_back() {
        for raised in [true, false] {
            let mut world = world();
            let id = world.connect();
            let requests = [ask_for(1, 5_000, b"k"), acquire_for(2, 9_000, 1_000, b"k")];
            world.ask_and_turn(id, &requests);
            world.asks();
            world.end(id, PeerEnd::Broken);
            assert_eq!(world.closed, [id]);
            let other = world.connect();
            let waits = world.ask_and_turn(other, &[acquire_for(3, 9_000, 1_000, b"k")]);
            assert_eq!(waits, []);
            world.news(if raised {
                News::Raised
            } else {
                News::NotRaised
            });
            assert_eq!(world.replies(id), []);
            assert_eq!(world.replies(other), [acquired(3, 101, 0)]);
            let counters = world.worker.engine().counters();
            let counts = (counters.lost_grants, counters.given_up);
            assert_eq!(counts, if raised { (1, 0) } else { (0, 1) });
        }
    }

    /// Scenario 47.
    #[test]
    fn by_a_reset_and_dlm_locks_stay() {
        let mut world = world();
        let id = world.begin_dlm(&lock_for("A", 5_000, "k"));
        world.asks();
        world.end(id, PeerEnd::Broken);
        assert_eq!(world.closed, [id]);
        let again = world.begin_dlm(&lock_for("A", 5_000, "k"));
        world.news(News::Raised);
        assert_eq!(world.status(id), None);
        assert_eq!(world.status(again), Some(Status::Locked));
        assert_eq!(world.worker.engine().counters().lost_grants, 0);
        let other = world.begin_dlm(&lock_for("B", 1_000, "k"));
        assert_eq!(world.status(other), Some(Status::NotOwner));
    }

    #[test]
    fn with_an_error_that_comes_last() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 5_000, b"k")]);
        world.asks();
        world.receive(id, b"Z");
        world.turns_until_idle();
        assert_eq!((world.replies(id), world.shut_down.len()), (vec![], 0));
        world.news(News::Raised);
        assert_eq!(
            world.replies(id),
            [acquired(1, 100, 0), error(0, ErrorCode::UnknownOp)]
        );
        assert_eq!(world.shut_down, [id]);
    }

    #[test]
    fn with_all_of_them_when_the_server_ends() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 5_000, b"k")]);
        let lock = world.begin_dlm(&lock_for("A", 5_000, "l"));
        world.asks();
        world.worker.handle_drain();
        world.worker.close_all(world.now);
        world.turns_until_idle();
        assert_eq!(world.shut_down, []);
        world.news(News::Raised);
        assert_eq!(world.replies(id), [acquired(1, 100, 0)]);
        assert_eq!(world.status(lock), Some(Status::Locked));
        world.shut_down.sort();
        assert_eq!(world.shut_down, [id, lock]);
    }

    /// The grant is released at the session's end; its reply is owed all the same, and
    /// comes before that end.
    #[test]
    fn and_release_their_grants_on_close() {
        for raised in [true, false] {
            let mut world = world();
            let (id, other) = (world.connect(), world.connect());
            let requests = [hello(flags::RELEASE_ON_CLOSE), ask_for(2, 5_000, b"k")];
            assert_eq!(world.ask_and_turn(id, &requests).len(), 1, "the welcome");
            world.asks();
            world.ask_and_turn(other, &[acquire_for(3, 9_000, 1_000, b"k")]);
            world.end(id, PeerEnd::Fin);
            assert_eq!(world.replies(other), [acquired(3, 101, 0)]);
            world.news(if raised {
                News::Raised
            } else {
                News::NotRaised
            });
            let reply = if raised {
                acquired(2, 100, 0)
            } else {
                error(2, OVERLOADED)
            };
            assert_eq!(world.replies(id), [reply]);
            assert_eq!(world.closed, [id]);
            assert!(world.is_held(b"k"), "it is the other's");
        }
    }

    #[test]
    fn and_do_not_release_what_another_session_has_extended() {
        let mut world = world();
        let (id, other) = (world.connect(), world.connect());
        let requests = [hello(flags::RELEASE_ON_CLOSE), ask_for(2, 1_000, b"k")];
        world.ask_and_turn(id, &requests);
        assert_eq!(
            world.ask_and_turn(other, &[extend(3, 100, 5_000, b"k")]),
            []
        );
        world.asks();
        world.end(id, PeerEnd::Fin);
        world.news(News::Raised);
        assert_eq!(world.replies(other), [extended(3, 5_000)]);
        assert!(world.is_held(b"k"));
    }
}

mod too_many_wait {
    use super::*;

    fn world_with_room_for(max_held: u32) -> World {
        let mut config = config_with(durable(D_MS));
        config.engine.max_waiters = max_held;
        World::new(config)
    }

    #[test]
    fn one_more_is_refused_at_once() {
        let mut world = world_with_room_for(2);
        let id = world.connect();
        let requests = [
            ask_for(1, 5_000, b"k"),
            ask_for(2, 5_000, b"l"),
            ask_for(3, 5_000, b"m"),
        ];
        assert_eq!(world.ask_and_turn(id, &requests), [error(3, OVERLOADED)]);
        assert!(!world.is_held(b"m"));
        let lock = world.begin_dlm(&lock_for("A", 5_000, "m"));
        assert_eq!(world.status(lock), Some(Status::No));
        assert!(!world.is_held(b"m"));
        world.asks();
        world.news(News::Raised);
        assert_eq!(
            world.replies(id),
            [acquired(1, 100, 0), acquired(2, 101, 0)]
        );
        assert_eq!(
            world.ask_and_turn(id, &[ask_for(4, 5_000, b"m")]),
            [acquired(4, 104, 0)]
        );
    }

    #[test]
    fn an_unlock_is_never_refused() {
        let mut world = world_with_room_for(1);
        let lock = world.begin_dlm(&lock_for("A", CAP_MS + 1, "k"));
        world.asks();
        world.news(News::Recorded { up_to: 1 });
        assert_eq!(world.status(lock), Some(Status::Locked));
        let unlocks = [(); 3].map(|()| world.begin_dlm(&unlock("A", "k")));
        world.asks();
        for id in unlocks {
            assert_eq!(world.status(id), None);
        }
        world.news(News::Recorded { up_to: 2 });
        for id in unlocks {
            assert_eq!(world.status(id), Some(Status::Unlocked));
        }
    }

    /// However many are refused in a turn, they are refused in that turn, or there would
    /// be more and more of them.
    #[test]
    fn refusals_do_not_pile_up() {
        let mut config = config_with(durable(D_MS));
        config.engine.max_waiters = 1;
        config.output_soft_limit_bytes = 1 << 20;
        let mut world = World::new(config);
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 1_000, b"k")]);
        let flood = frames(&vec![extend(2, 100, 60_000, b"k"); 1_000]);
        let sessions = [(); 5].map(|()| world.connect());
        for id in sessions {
            world.worker.handle_received(id, &flood, world.now);
        }
        world.turn();
        assert!(!world.worker.held.has_settled());
        let refused: usize = sessions.map(|id| world.replies(id).len()).iter().sum();
        assert_eq!(refused, 5 * 1_000 - 1, "one waits");
    }
}

mod a_drain {
    use super::*;

    #[test]
    fn tells_what_waits_and_ends_when_nothing_is_held() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 5_000, b"k")]);
        world.asks();
        world.worker.handle_drain();
        world.turns_until_idle();
        assert!(!world.worker.is_drained());
        world.news(News::Raised);
        assert_eq!(world.replies(id), [acquired(1, 100, 0)]);
        world.ask_and_turn(id, &[release(2, 100, b"k")]);
        assert!(world.worker.is_drained());
    }

    #[test]
    fn passes_no_grant_on_that_could_not_be_told() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 5_000, b"k")]);
        world.asks();
        world.ask_and_turn(id, &[acquire_for(2, 9_000, 1_000, b"k")]);
        world.worker.handle_drain();
        world.turns_until_idle();
        assert_eq!(world.replies(id), [error(2, ErrorCode::ShuttingDown)]);
        world.news(News::NotRaised);
        assert_eq!(world.replies(id), [error(1, OVERLOADED)]);
        assert!(world.worker.is_drained());
    }

    /// Scenario 55: extended during a drain, by more than D.
    #[test]
    fn leaves_the_next_start_what_is_left_of_an_extended_lease() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 1_000, b"k")]);
        world.worker.handle_drain();
        assert_eq!(world.ask_and_turn(id, &[extend(2, 100, 60_000, b"k")]), []);
        assert_eq!(world.asks(), [raise(65_536)]);
        world.news(News::Raised);
        assert_eq!(world.replies(id), [extended(2, 60_000)]);
        let lease_end = world.now.plus_millis(60_000);
        world.pass(1_000);
        assert_eq!(world.worker.last_deadline(), lease_end);
    }
}
