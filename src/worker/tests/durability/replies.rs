//! Replies wait until what they tell of survives a restart, and no longer; what cannot be
//! made to survive one is refused.

use super::*;
use crate::durability::RecordChange;

mod d_is_raised {
    use super::*;

    #[test]
    fn before_a_longer_lease_is_told_of() {
        let mut world = world();
        let id = world.connect();
        let sent = world.ask_and_turn(id, &[ask_for(1, 1_024, b"k")]);
        assert_eq!(sent, [acquired(1, 100, 0)]);
        assert_eq!(world.asks(), []);
        let sent = world.ask_and_turn(id, &[ask_for(2, 1_025, b"l"), ask_for(3, 2_048, b"m")]);
        assert_eq!(sent, []);
        assert!(world.is_held(b"l"), "the grant takes effect at once");
        assert_eq!(world.asks(), [raise(2_048)]);
        // Nothing else waits with them.
        let sent = world.ask_and_turn(id, &[ask_for(4, 1_000, b"n"), ping(5)]);
        assert_eq!(sent, [acquired(4, 103, 0), pong(5)]);
        assert_eq!(world.asks(), [], "it is under way");
        world.pass(100);
        world.news(News::Raised);
        assert_eq!(
            world.replies(id),
            [acquired(2, 101, 0), acquired(3, 102, 0)]
        );
        let sent = world.ask_and_turn(id, &[ask_for(6, 2_048, b"o")]);
        assert_eq!(sent, [acquired(6, 104, 0)]);
        assert_eq!(world.asks(), []);
    }

    #[test]
    fn from_nothing_to_the_least_there_is() {
        let mut world = World::new(config_with(durable(0)));
        let id = world.connect();
        assert_eq!(world.ask_and_turn(id, &[ask_for(1, 1, b"k")]), []);
        assert_eq!(world.asks(), [raise(1_024)]);
        world.news(News::Raised);
        assert_eq!(world.replies(id), [acquired(1, 100, 0)]);
    }

    /// What comes while one is under way and needs more gets the next, at once as high as
    /// it needs.
    #[test]
    fn level_after_level() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 5_000, b"k")]);
        assert_eq!(world.asks(), [raise(8_192)]);
        world.ask_and_turn(id, &[ask_for(2, 60_000, b"l"), ask_for(3, 200_000, b"m")]);
        world.ask_and_turn(id, &[ask_for(4, 8_000, b"n")]);
        assert_eq!(world.asks(), []);
        world.news(News::Raised);
        assert_eq!(
            world.replies(id),
            [acquired(1, 100, 0), acquired(4, 103, 0)]
        );
        assert_eq!(world.asks(), [raise(262_144)]);
        world.news(News::Raised);
        assert_eq!(
            world.replies(id),
            [acquired(2, 101, 0), acquired(3, 102, 0)]
        );
        assert_eq!(world.asks(), []);
    }

    #[test]
    fn up_to_the_cap() {
        let mut world = World::new(config_with(durable(262_144)));
        let id = world.begin_dlm(&lock_for("A", CAP_MS, "k"));
        assert_eq!(world.asks(), [raise(CAP_MS)]);
        world.news(News::Raised);
        assert_eq!(world.status(id), Some(Status::Locked));
    }

    /// What remains is told as of when it is told.
    #[test]
    fn before_an_extension_is_told_of() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 1_000, b"k")]);
        assert_eq!(world.ask_and_turn(id, &[extend(2, 100, 60_000, b"k")]), []);
        assert_eq!(world.asks(), [raise(65_536)]);
        assert_eq!(world.remaining_ms(b"k"), 60_000, "it is extended already");
        world.pass(3_000);
        world.news(News::Raised);
        assert_eq!(world.replies(id), [extended(2, 57_000)]);
    }

    /// A short extension of a lease that is long already tells of all that is left.
    #[test]
    fn before_a_short_extension_tells_of_a_long_lease() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 1_000, b"k")]);
        let both = [extend(2, 100, 60_000, b"k"), extend(3, 100, 1_000, b"k")];
        assert_eq!(world.ask_and_turn(id, &both), []);
        world.asks();
        world.news(News::NotRaised);
        assert_eq!(
            world.replies(id),
            [error(2, OVERLOADED), error(3, OVERLOADED)]
        );
        assert_eq!(world.ask_and_turn(id, &[extend(4, 100, 1_000, b"k")]), []);
        assert_eq!(world.asks(), [raise(65_536)]);
        world.news(News::Raised);
        assert_eq!(world.replies(id), [extended(4, 60_000)]);
    }

    #[test]
    fn before_dlm_answers() {
        let mut world = world();
        let at_once = world.begin_dlm(&lock_for("A", D_MS, "k"));
        assert_eq!(world.status(at_once), Some(Status::Locked));
        // No lock of its own: it tells of no lease.
        let data = world.begin_dlm(&put_for("B", 60_000, "k"));
        assert_eq!(world.status(data), Some(Status::Done));
        let lock = world.begin_dlm(&lock_for("A", 2_000, "l"));
        let relock = world.begin_dlm(&lock_for("A", 2_048, "k"));
        let put = world.begin_dlm(&put_for("A", 1_025, "l"));
        assert_eq!(world.asks(), [raise(2_048)]);
        for id in [lock, relock, put] {
            assert_eq!(world.status(id), None);
        }
        // Others are told how it is.
        let other = world.begin_dlm(&lock_for("B", 1_000, "l"));
        assert_eq!(world.status(other), Some(Status::NotOwner));
        world.news(News::Raised);
        assert_eq!(world.status(lock), Some(Status::Locked));
        assert_eq!(world.status(relock), Some(Status::Locked));
        assert_eq!(world.status(put), Some(Status::Done));
    }

    /// A grant that passes on waits like any other.
    #[test]
    fn before_a_waiter_is_told_of_its_grant() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 1_000, b"k")]);
        assert_eq!(
            world.ask_and_turn(id, &[acquire_for(2, 9_000, 5_000, b"k")]),
            []
        );
        assert_eq!(world.asks(), [], "nothing is granted that long yet");
        world.pass(1_000);
        assert_eq!(world.replies(id), []);
        assert_eq!(world.asks(), [raise(8_192)]);
        world.pass(500);
        world.news(News::Raised);
        assert_eq!(world.replies(id), [acquired(2, 101, 1_000)]);
    }

    #[test]
    fn never_where_nothing_survives_a_restart() {
        let mut world = World::new(config());
        let id = world.connect();
        let sent = world.ask_and_turn(id, &[ask_for(1, 255_000, b"k")]);
        assert_eq!(sent, [acquired(1, 100, 0)]);
        let lock = world.begin_dlm(&lock_for("A", 3_000_000, "l"));
        assert_eq!(world.status(lock), Some(Status::Locked));
        assert_eq!(world.asks(), []);
        assert_eq!(world.worker.held.poll_timeout(), None);
    }
}

mod d_could_not_be_raised {
    use super::*;

    #[test]
    fn a_grant_is_refused_and_given_up() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 5_000, b"k")]);
        world.asks();
        world.news(News::NotRaised);
        assert_eq!(world.replies(id), [error(1, OVERLOADED)]);
        assert!(!world.is_held(b"k"));
        assert_eq!(world.worker.engine().counters().given_up, 1);
        // Another lease asks again.
        assert_eq!(world.asks(), []);
        world.ask_and_turn(id, &[ask_for(2, 5_000, b"k")]);
        assert_eq!(world.asks(), [raise(8_192)]);
        world.news(News::Raised);
        assert_eq!(world.replies(id), [acquired(2, 101, 0)]);
    }

    #[test]
    fn the_next_waiter_is_granted_and_waits_or_fails_in_its_turn() {
        let mut world = world();
        let id = world.connect();
        let requests = [
            ask_for(1, 5_000, b"k"),
            acquire_for(2, 9_000, 6_000, b"k"),
            acquire_for(3, 9_000, 1_000, b"k"),
            acquire_for(4, 9_000, 7_000, b"k"),
        ];
        assert_eq!(world.ask_and_turn(id, &requests), []);
        assert_eq!(world.asks(), [raise(8_192)]);
        world.news(News::NotRaised);
        assert_eq!(world.replies(id), [error(1, OVERLOADED)]);
        assert_eq!(world.asks(), [raise(8_192)]);
        world.news(News::NotRaised);
        // The third asks for no more than is durable.
        assert_eq!(
            world.replies(id),
            [error(2, OVERLOADED), acquired(3, 102, 0)]
        );
        assert_eq!(world.asks(), []);
        world.ask_and_turn(id, &[release(9, 102, b"k")]);
        assert_eq!(world.asks(), [raise(8_192)]);
        world.news(News::Raised);
        assert_eq!(world.replies(id), [acquired(4, 103, 0)]);
    }

    #[test]
    fn an_extension_is_refused_and_the_lease_is_not_shortened() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 1_000, b"k")]);
        world.ask_and_turn(id, &[extend(2, 100, 60_000, b"k")]);
        world.asks();
        world.news(News::NotRaised);
        assert_eq!(world.replies(id), [error(2, OVERLOADED)]);
        assert_eq!(world.remaining_ms(b"k"), 60_000);
        let sent = world.ask_and_turn(id, &[release(3, 100, b"k")]);
        assert_eq!(sent, [Reply::Released { owner: 3 }]);
    }

    #[test]
    fn dlm_answers_are_no() {
        let mut world = world();
        let held = world.begin_dlm(&lock_for("A", 1_000, "k"));
        world.status(held);
        let lock = world.begin_dlm(&lock_for("A", 5_000, "l"));
        let relock = world.begin_dlm(&lock_for("A", 5_000, "k"));
        let put = world.begin_dlm(&put_for("A", 5_000, "k"));
        world.asks();
        world.news(News::NotRaised);
        for id in [lock, relock, put] {
            assert_eq!(world.status(id), Some(Status::No));
        }
        assert!(!world.is_held(b"l"), "the grant is given up");
        assert_eq!(
            world.remaining_ms(b"k"),
            5_000,
            "a renewal is not taken back"
        );
    }

    /// It was granted to somebody else, who has been told, or will be.
    #[test]
    fn a_grant_that_has_ended_meanwhile_is_refused_only() {
        let mut world = world();
        let id = world.connect();
        world.ask_and_turn(id, &[ask_for(1, 5_000, b"k")]);
        world.asks();
        world.ask_and_turn(id, &[acquire_for(2, 9_000, 1_000, b"k")]);
        world.pass(5_000);
        assert_eq!(world.replies(id), [acquired(2, 101, 5_000)]);
        world.news(News::NotRaised);
        assert_eq!(world.replies(id), [error(1, OVERLOADED)]);
        assert!(world.is_held(b"k"));
    }
}

mod records {
    use super::*;

    const LONG_MS: u64 = CAP_MS + 1;

    fn numbers_of(asks: &[Ask]) -> Vec<(u64, bool)> {
        let number_of = |ask: &Ask| match ask {
            Ask::Record { number, change } => (*number, matches!(change, RecordChange::Set(_))),
            other => panic!("{other:?}"),
        };
        asks.iter().map(number_of).collect()
    }

    /// "k" is A's, and its record is durable.
    fn recorded() -> World {
        let mut world = world();
        let id = world.begin_dlm(&lock_for("A", LONG_MS, "k"));
        assert_eq!(numbers_of(&world.asks()), [(1, true)]);
        assert_eq!(world.status(id), None);
        world.news(News::Recorded { up_to: 1 });
        assert_eq!(world.status(id), Some(Status::Locked));
        world
    }

    #[test]
    fn come_before_a_long_lease_is_told_of_and_d_stays() {
        let mut world = recorded();
        let relock = world.begin_dlm(&lock_for("A", 1_000, "k"));
        assert_eq!(world.status(relock), Some(Status::Locked));
        world.pass(10);
        let relock = world.begin_dlm(&lock_for("A", LONG_MS, "k"));
        let put = world.begin_dlm(&put_for("A", LONG_MS + 1, "k"));
        assert_eq!(numbers_of(&world.asks()), [(2, true), (3, true)]);
        world.news(News::Recorded { up_to: 2 });
        assert_eq!(world.status(relock), Some(Status::Locked));
        assert_eq!(world.status(put), None);
        world.news(News::Recorded { up_to: 3 });
        assert_eq!(world.status(put), Some(Status::Done));
    }

    #[test]
    fn that_fail_refuse_the_grant_and_end() {
        let mut world = world();
        let first = world.begin_dlm(&lock_for("A", LONG_MS, "k"));
        let second = world.begin_dlm(&lock_for("A", LONG_MS, "l"));
        assert_eq!(numbers_of(&world.asks()), [(1, true), (2, true)]);
        world.news(News::NotRecorded { up_to: 1 });
        assert_eq!(world.status(first), Some(Status::No));
        assert_eq!(world.status(second), None);
        assert!(!world.is_held(b"k"));
        assert_eq!(numbers_of(&world.asks()), [(3, false)]);
        world.news(News::Recorded { up_to: 3 });
        assert_eq!(world.status(second), Some(Status::Locked));
    }

    #[test]
    fn that_fail_leave_a_renewed_lock_as_it_is() {
        let mut world = recorded();
        world.pass(10);
        let relock = world.begin_dlm(&lock_for("A", LONG_MS, "k"));
        world.asks();
        world.news(News::NotRecorded { up_to: 2 });
        assert_eq!(world.status(relock), Some(Status::No));
        assert_eq!(world.remaining_ms(b"k"), u32::try_from(LONG_MS).unwrap());
        // The store tries again by itself.
        let relock = world.begin_dlm(&lock_for("A", 1_000, "k"));
        assert_eq!(world.status(relock), None);
        assert_eq!(world.asks(), []);
        world.news(News::Recorded { up_to: 2 });
        assert_eq!(world.status(relock), Some(Status::Locked));
    }

    #[test]
    fn an_unlock_waits_through_failures() {
        let mut world = recorded();
        let first = world.begin_dlm(&unlock("A", "k"));
        let again = world.begin_dlm(&unlock("A", "k"));
        assert!(!world.is_held(b"k"), "it is unlocked already");
        assert_eq!(numbers_of(&world.asks()), [(2, false)]);
        for _ in 0..3 {
            world.news(News::NotRecorded { up_to: 2 });
            world.pass(60_000);
            assert_eq!((world.status(first), world.status(again)), (None, None));
        }
        world.news(News::Recorded { up_to: 2 });
        assert_eq!(world.status(first), Some(Status::Unlocked));
        assert_eq!(world.status(again), Some(Status::Unlocked));
        let later = world.begin_dlm(&unlock("A", "k"));
        assert_eq!(world.status(later), Some(Status::Unlocked));
    }

    /// A restart would hold the key for its former holder.
    #[test]
    fn a_later_grant_waits_for_the_end_of_the_record() {
        let mut world = recorded();
        let id = world.connect();
        world.ask_and_turn(id, &[acquire_for(1, 9_000, 1_000, b"k")]);
        let unlock = world.begin_dlm(&unlock("A", "k"));
        world.asks();
        assert_eq!(world.replies(id), []);
        world.news(News::NotRecorded { up_to: 2 });
        assert_eq!(world.replies(id), [error(1, OVERLOADED)]);
        assert!(!world.is_held(b"k"));
        assert_eq!(world.ask_and_turn(id, &[ask_for(2, 1_000, b"k")]), []);
        // Longer than D, too: it waits for both.
        world.ask_and_turn(id, &[acquire_for(3, 9_000, 5_000, b"k")]);
        world.pass(1_000);
        assert_eq!(world.asks(), [raise(8_192)]);
        world.news(News::Raised);
        assert_eq!(world.replies(id), []);
        world.news(News::Recorded { up_to: 2 });
        assert_eq!(
            world.replies(id),
            [acquired(2, 102, 0), acquired(3, 103, 1_000)]
        );
        assert_eq!(world.status(unlock), Some(Status::Unlocked));
    }
}
