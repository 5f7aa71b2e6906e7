//! The mesh's sleep handshake in every interleaving of two and three loops, and with
//! every stale value that the memory model lets a load see. A lost wake leaves a
//! loop parked for ever, which ends the run as a deadlock.

use std::sync::Arc;

use loom::sync::atomic;
use loom::thread;

use atomic::{AtomicUsize, Ordering};
use sleep::{News, SleepState, Until, publish};

#[path = "../src/mesh/sleep.rs"]
mod sleep;

/// Tries `model` in every way that takes a thread off its course at most four times
/// where it did not stop by itself, or as often as LOOM_MAX_PREEMPTIONS says.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(4);
    builder.check(model);
}

/// What two loops share: a ring, reduced to its two counts, and who sleeps.
struct Shared {
    sent: AtomicUsize,
    taken: AtomicUsize,
    sender: SleepState,
    receiver: SleepState,
}

impl Shared {
    fn new() -> Shared {
        Shared {
            sent: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            sender: SleepState::awake(),
            receiver: SleepState::awake(),
        }
    }

    /// One message more, as several senders with a ring each would send it. Returns
    /// whether the receiver was to be woken.
    fn send(&self, receiver: &thread::Thread) -> bool {
        self.sent.fetch_add(1, Ordering::Release);
        let wakes = self.receiver.rouse(News::Message, &publish());
        if wakes {
            receiver.unpark();
        }
        wakes
    }

    /// Returns once `count` messages have come, and how often it meant to sleep.
    fn receive(&self, count: usize) -> usize {
        let mut sleeps = 0;
        let mut seen = 0;
        while seen < count {
            self.receiver.announce(Until::Message);
            sleeps += 1;
            let arrived = self.sent.load(Ordering::Acquire);
            if arrived == seen {
                thread::park();
            }
            self.receiver.rise();
            seen = arrived;
        }
        sleeps
    }
}

#[test]
fn no_message_is_slept_on() {
    check(|| {
        let shared = Arc::new(Shared::new());
        let receiver = thread::current();
        let sending = Arc::clone(&shared);
        let sender = thread::spawn(move || (0..2).filter(|_turn| sending.send(&receiver)).count());
        let sleeps = shared.receive(2);
        let wakes = sender.join().expect("it ends");
        assert!(wakes <= sleeps, "{wakes} wakes for {sleeps} sleeps");
    });
}

#[test]
fn of_two_senders_one_wakes() {
    check(|| {
        let shared = Arc::new(Shared::new());
        let receiver = thread::current();
        let senders = [(); 2].map(|()| {
            let (sending, receiver) = (Arc::clone(&shared), receiver.clone());
            thread::spawn(move || sending.send(&receiver))
        });
        let sleeps = shared.receive(2);
        let wakes = senders
            .map(|sender| sender.join().expect("it ends"))
            .into_iter()
            .filter(|woke| *woke)
            .count();
        assert!(wakes <= sleeps, "{wakes} wakes for {sleeps} sleeps");
    });
}

/// The ring holds one message: the sender sleeps until the first is taken.
#[test]
fn no_room_is_slept_on() {
    check(|| {
        let shared = Arc::new(Shared::new());
        let sender = thread::current();
        let receiving = Arc::clone(&shared);
        let receiver = thread::spawn(move || {
            for count in 1..=2 {
                loop {
                    receiving.receiver.announce(Until::Message);
                    if receiving.sent.load(Ordering::Acquire) == count {
                        break;
                    }
                    thread::park();
                }
                receiving.receiver.rise();
                receiving.taken.store(count, Ordering::Release);
                if receiving.sender.rouse(News::Room, &publish()) {
                    sender.unpark();
                }
            }
        });
        for count in 1..=2 {
            while shared.taken.load(Ordering::Acquire) < count - 1 {
                shared.sender.announce(Until::MessageOrRoom);
                if shared.taken.load(Ordering::Acquire) < count - 1 {
                    thread::park();
                }
                shared.sender.rise();
            }
            shared.send(receiver.thread());
        }
        receiver.join().expect("it ends");
    });
}

/// The order of the sleeper's two steps is what it all hangs on; and this shows that
/// a wake that is lost does not pass here.
#[test]
#[should_panic(expected = "deadlock")]
fn a_look_before_the_announcement_is_not_enough() {
    check(|| {
        let shared = Arc::new(Shared::new());
        let receiver = thread::current();
        let sending = Arc::clone(&shared);
        thread::spawn(move || sending.send(&receiver));
        if shared.sent.load(Ordering::Acquire) == 0 {
            shared.receiver.announce(Until::Message);
            thread::park();
        }
    });
}
