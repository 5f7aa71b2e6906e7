//! What a start decides from what the last server left.

use super::PreviousEnd;
use super::format::{End, State};
use crate::durability::{Durable, TOKEN_BLOCK};
use crate::engine::time::Time;
use crate::limits::TOKEN_END;

/// How a server starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// What has to be durable before anything is granted.
    pub state: State,
    /// No token below it may be given out.
    pub first_token: u64,
    /// How long keys of which nothing is known may still be held, in milliseconds since
    /// the directory was taken.
    pub wait_ms: u64,
    /// How the server before this one ended.
    pub previous: PreviousEnd,
}

impl Start {
    /// Decides, from the last state if there was a server before. `wall_nanos` is what
    /// the wall clock shows, in nanoseconds since 1970; `expiry_grace_ms` how long a
    /// lease that is over still counts. `None` if no block of tokens is left below 2^63.
    pub fn decide(
        last: Option<State>,
        wall_nanos: u64,
        expiry_grace_ms: u64,
        skip_grace: bool,
    ) -> Option<Start> {
        let (mark, d_ms) = last.map_or((0, 0), |state| (state.mark, state.d_ms));
        let (previous, lease_ms) = match last.map(|state| state.end) {
            None => (PreviousEnd::None, 0),
            Some(End::Clean { left_ms }) => (PreviousEnd::Clean { left_ms }, left_ms),
            Some(End::Unclean) => (PreviousEnd::Unclean { d_ms }, d_ms),
        };
        // Where there was no lease, none that is over still counts.
        let wait_ms = if lease_ms == 0 || skip_grace {
            0
        } else {
            lease_ms.saturating_add(expiry_grace_ms)
        };
        // The wall clock may have been set back, and zero is no token.
        let first_token = wall_nanos.max(mark).max(1);
        let mark = first_token.checked_add(TOKEN_BLOCK)?;
        let state = State {
            mark,
            d_ms,
            end: End::Unclean,
        };
        (mark < TOKEN_END).then_some(Start {
            state,
            first_token,
            wait_ms,
            previous,
        })
    }

    /// What every loop starts with, if the directory was taken before `now`.
    pub fn durable(&self, cap_ms: u64, now: Time) -> Durable {
        Durable {
            d_ms: self.state.d_ms,
            cap_ms,
            mark: self.state.mark,
            token_block: TOKEN_BLOCK,
            started_at: now,
            grace_end: match self.wait_ms {
                0 => Time::ZERO,
                wait_ms => now.plus_millis(wait_ms),
            },
        }
    }

    /// What has to be durable at last if nothing was granted until `now`: the next start
    /// has to wait no longer than this one had.
    pub fn given_up(&self, durable: &Durable, now: Time) -> State {
        State {
            end: End::Clean {
                left_ms: durable.grace_end.millis_since_ceil(now),
            },
            ..self.state
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: u64 = 1_700_000_000_000_000_000;

    fn start(last: Option<State>) -> Start {
        Start::decide(last, WALL, 50, false).expect("tokens are left")
    }

    fn state(mark: u64, d_ms: u64, end: End) -> State {
        State { mark, d_ms, end }
    }

    #[test]
    fn the_wait_follows_from_how_the_last_server_ended() {
        for (end, d_ms, wait_ms) in [
            (End::Unclean, 8192, 8242),
            (End::Unclean, 0, 0),
            (End::Clean { left_ms: 0 }, 8192, 0),
            (End::Clean { left_ms: 1 }, 8192, 51),
            (End::Unclean, u64::MAX, u64::MAX),
        ] {
            let start = start(Some(state(5, d_ms, end)));
            assert_eq!(start.wait_ms, wait_ms, "{end:?}");
            assert_eq!(start.state.end, End::Unclean);
            assert_eq!(start.state.d_ms, d_ms, "D stays");
        }
    }

    #[test]
    fn the_first_start_waits_for_nothing() {
        let start = start(None);
        assert_eq!((start.wait_ms, start.state.d_ms), (0, 0));
        assert_eq!(start.first_token, WALL);
        assert_eq!(start.previous, PreviousEnd::None);
        let durable = start.durable(300_000, Time::from_millis(7));
        assert_eq!(durable.grace_end, Time::ZERO);
    }

    #[test]
    fn tokens_go_on_from_the_mark_when_the_wall_clock_was_set_back() {
        let last = state(WALL + 9, 0, End::Clean { left_ms: 0 });
        let later = start(Some(last));
        assert_eq!(later.first_token, WALL + 9);
        assert_eq!(later.state.mark, WALL + 9 + TOKEN_BLOCK);
        let before_1970 = Start::decide(None, 0, 0, false).expect("tokens are left");
        assert_eq!(before_1970.first_token, 1);
    }

    #[test]
    fn a_start_that_could_reserve_no_block_below_the_last_token_is_none() {
        let last = TOKEN_END - TOKEN_BLOCK - 1;
        for (first, is_left) in [(last, true), (last + 1, false), (u64::MAX, false)] {
            let by_wall = Start::decide(None, first, 0, false);
            assert_eq!(by_wall.is_some(), is_left);
            let stored = state(first, 0, End::Unclean);
            let by_mark = Start::decide(Some(stored), WALL, 0, false);
            assert_eq!(by_mark.is_some(), is_left);
        }
    }

    #[test]
    fn the_operator_may_skip_the_wait_and_nothing_else() {
        let last = Some(state(WALL + 5, 8192, End::Unclean));
        let waits = start(last);
        let skips = Start::decide(last, WALL, 50, true).expect("tokens are left");
        assert_eq!(
            skips,
            Start {
                wait_ms: 0,
                ..waits
            }
        );
    }

    #[test]
    fn a_start_that_is_given_up_leaves_the_rest_of_its_wait() {
        let last = Some(state(5, 8192, End::Unclean));
        let start = start(last);
        let durable = start.durable(300_000, Time::from_millis(1000));
        for (now_ms, left_ms) in [(1000, 8242), (1001, 8241), (9242, 0), (20_000, 0)] {
            let given_up = start.given_up(&durable, Time::from_millis(now_ms));
            assert_eq!(given_up.end, End::Clean { left_ms });
            assert_eq!((given_up.mark, given_up.d_ms), (start.state.mark, 8192));
        }
    }
}
