//! The wheel against a naive one, driven by bytes; and a rig, which the wheel's tests
//! use, too.

use super::*;

/// The bytes are moves: a timer is armed, armed anew or cancelled, time passes, polls
/// have much or little budget. Nothing fires early, late, twice or out of order.
pub(in crate::engine) fn run(data: &[u8]) {
    let mut pair = Pair {
        rig: Rig::new(),
        naive: Vec::new(),
        now: 0,
    };
    for a_move in data.chunks(4) {
        let mut bytes = [0; 4];
        bytes[..a_move.len()].copy_from_slice(a_move);
        pair.step(bytes);
    }
    while !pair.naive.is_empty() {
        let next = pair.rig.wheel.next_tick().expect("timers are armed");
        pair.now = pair.now.max(next);
        pair.poll(u32::MAX);
    }
    assert_eq!(
        (pair.rig.wheel.len(), pair.rig.wheel.next_tick()),
        (0, None)
    );
}

/// The last one that a [`Time`] has.
const LAST_TICK: u64 = Time::MAX.tick_ceil();

/// A wheel, and the armed timers with their ticks as a plain list.
struct Pair {
    rig: Rig,
    naive: Vec<(u32, u64)>,
    now: u64,
}

impl Pair {
    fn step(&mut self, [what, which, scale, amount]: [u8; 4]) {
        let ticks = u64::from(amount) << (u32::from(scale) % 48).min(40);
        // About the edge of a slot, and not on it alone.
        let ticks = (ticks + u64::from(scale / 48)).saturating_sub(u64::from(what / 128));
        let ahead = (self.now + ticks).min(LAST_TICK);
        match what % 8 {
            0..=2 if self.naive.len() < 256 => {
                let timer = self.rig.arm(ahead);
                self.naive.push((timer, ahead));
            }
            3 if !self.naive.is_empty() => {
                let place = usize::from(which) % self.naive.len();
                self.naive[place].1 = ahead;
                self.rig.rearm(self.naive[place].0, ahead);
            }
            4 if !self.naive.is_empty() => {
                let place = usize::from(which) % self.naive.len();
                self.rig.cancel(self.naive.swap_remove(place).0);
            }
            5 => {
                self.now = ahead;
                self.poll(u32::from(which) % 8);
            }
            6 => {
                self.now = ahead;
                self.poll(u32::MAX);
                assert!(self.rig.poll_all(self.now).is_empty());
            }
            _ => {
                self.now = (self.now + u64::from(which)).min(LAST_TICK);
                self.poll(u32::from(amount));
            }
        }
        self.rig.check();
        let earliest = self.naive.iter().map(|&(_, due)| due).min();
        let next = self.rig.wheel.next_tick();
        assert_eq!(next.is_some(), earliest.is_some());
        assert_eq!(self.rig.wheel.len() as usize, self.naive.len());
        if let (Some(next), Some(earliest)) = (next, earliest) {
            assert!(next <= earliest.max(self.now), "never late");
        }
    }

    fn poll(&mut self, budget: u32) {
        let (fired, steps) = self.rig.poll(self.now, budget);
        assert!(steps <= budget);
        let mut last = 0;
        for timer in fired {
            let place = self.naive.iter().position(|&(armed, _)| armed == timer);
            let (_, due) = self.naive.swap_remove(place.expect("it was armed"));
            assert!(due <= self.now, "early");
            assert!(due >= last, "out of order");
            last = due;
        }
        if budget == u32::MAX {
            assert!(self.naive.iter().all(|&(_, due)| due > self.now), "late");
        }
    }
}

/// Timers in plain vectors: index = place, `due` its tick.
#[derive(Debug, Default)]
pub(super) struct Timers {
    links: Vec<TimerLinks>,
    due: Vec<u64>,
}

impl TimerStore for Timers {
    fn timer(&self, timer: TimerId) -> &TimerLinks {
        &self.links[timer.index() as usize]
    }

    fn timer_mut(&mut self, timer: TimerId) -> &mut TimerLinks {
        &mut self.links[timer.index() as usize]
    }

    fn due_tick(&self, timer: TimerId) -> u64 {
        self.due[timer.index() as usize]
    }
}

#[derive(Debug)]
pub(super) struct Rig {
    pub(super) wheel: TimerWheel,
    timers: Timers,
}

impl Rig {
    pub(super) fn new() -> Rig {
        Rig {
            wheel: TimerWheel::new(),
            timers: Timers::default(),
        }
    }

    pub(super) fn arm(&mut self, tick: u64) -> u32 {
        let index = self.timers.due.len() as u32;
        self.timers.due.push(tick);
        self.timers.links.push(TimerLinks::UNARMED);
        self.wheel.arm(&mut self.timers, id(index), tick);
        index
    }

    pub(super) fn rearm(&mut self, index: u32, tick: u64) {
        self.cancel(index);
        self.timers.due[index as usize] = tick;
        self.wheel.arm(&mut self.timers, id(index), tick);
    }

    pub(super) fn cancel(&mut self, index: u32) {
        self.wheel.cancel(&mut self.timers, id(index));
    }

    pub(super) fn poll(&mut self, now_tick: u64, budget: u32) -> (Vec<u32>, u32) {
        let mut steps_left = budget;
        let mut fired = Vec::new();
        while let Some(timer) = self.wheel.poll(&mut self.timers, now_tick, &mut steps_left) {
            fired.push(timer.index());
        }
        (fired, budget - steps_left)
    }

    pub(super) fn poll_all(&mut self, now_tick: u64) -> Vec<u32> {
        self.poll(now_tick, u32::MAX).0
    }

    pub(super) fn check(&self) {
        self.wheel.invariants(&self.timers);
    }
}

fn id(index: u32) -> TimerId {
    TimerId::new(TimerKind::Wait, index)
}
