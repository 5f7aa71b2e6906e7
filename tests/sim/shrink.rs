//! From a history that fails to a shorter one that fails the same way: first with fewer
//! steps, then without one client after the other, then without single connections.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::link::Conversation;
use crate::options::Options;
use crate::world::World;

/// How long to look for a shorter one, if SIM_SHRINK_SECONDS does not say.
const PATIENCE_SECONDS: u64 = 20;

/// The last lines of a history that are shown.
const MOST_LINES: usize = 300;

/// Why a history failed.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// Which check it was, by its place in the source.
    kind: String,
    message: String,
}

impl Fault {
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

thread_local! {
    static LAST: RefCell<Option<Fault>> = const { RefCell::new(None) };
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Plays a history. On failure says why, without printing it.
pub(crate) fn try_play<R>(
    options: &Options,
    play: impl Fn(&mut World) -> R,
) -> Result<R, (Box<World>, Fault)> {
    note_faults();
    let mut world = Box::new(World::new(options.clone()));
    let was_quiet = IS_QUIET.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| play(&mut world)));
    IS_QUIET.set(was_quiet);
    outcome.map_err(|_| {
        let fault = LAST.take().expect("a fault was noted");
        (world, fault)
    })
}

/// Looks for a shorter history that fails as this one did, and shows both.
pub(crate) fn report<R>(
    options: &Options,
    (world, fault): (Box<World>, Fault),
    play: impl Fn(&mut World) -> R,
) -> String {
    let given = std::env::var("SIM_SHRINK_SECONDS").ok();
    let seconds = given.map_or(PATIENCE_SECONDS, |text| text.parse().expect("a number"));
    let mut shrunk = Shrunk {
        until: Instant::now() + Duration::from_secs(seconds),
        tries: 0,
        options: options.clone().with_steps(options.steps.min(world.steps)),
        world,
        fault: fault.clone(),
    };
    if seconds > 0 {
        shrunk.leave_out_steps(&play);
        shrunk.leave_out_clients(&play);
        shrunk.leave_out_links(&play);
        shrunk.leave_out_steps(&play);
    }
    let Shrunk {
        tries,
        options: shorter,
        world,
        fault: last,
        ..
    } = shrunk;
    format!(
        "{}: {}\n{options}\nshortest found in {tries} tries, {} steps, without {:?}:\n{}{}: {}\n",
        fault.kind,
        fault.message,
        shorter.steps,
        shorter.left_out,
        told(&world),
        last.kind,
        last.message
    )
}

struct Shrunk {
    until: Instant,
    tries: u32,
    options: Options,
    world: Box<World>,
    fault: Fault,
}

impl Shrunk {
    /// Whether the same fault comes by these options; then they are the new ones.
    fn fails<R>(&mut self, options: Options, play: &impl Fn(&mut World) -> R) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        self.tries += 1;
        match try_play(&options, play) {
            Err((world, fault)) if fault.kind == self.fault.kind => {
                let steps = options.steps.min(world.steps);
                self.options = options.with_steps(steps);
                self.world = world;
                self.fault = fault;
                true
            }
            _ => false,
        }
    }

    fn leave_out_steps<R>(&mut self, play: &impl Fn(&mut World) -> R) {
        let mut too_few = 0;
        while too_few + 1 < self.options.steps {
            let steps = too_few.midpoint(self.options.steps);
            let options = self.options.clone().with_steps(steps);
            if !self.fails(options, play) {
                too_few = steps;
            }
        }
    }

    fn leave_out_clients<R>(&mut self, play: &impl Fn(&mut World) -> R) {
        for client in 0..self.options.clients {
            let mut options = self.options.clone();
            options.left_out.clients.insert(client);
            self.fails(options, play);
        }
    }

    fn leave_out_links<R>(&mut self, play: &impl Fn(&mut World) -> R) {
        let links = self.world.env.links.iter();
        let made: Vec<(usize, u32)> = links.filter_map(|link| link.made_by).collect();
        // The last ones first: earlier ones then stay as they were.
        for link in made.into_iter().rev() {
            let mut options = self.options.clone();
            options.left_out.links.insert(link);
            self.fails(options, play);
        }
    }
}

/// What clients sent and were told, in order.
fn told(world: &World) -> String {
    let mut lines = Vec::new();
    for (index, link) in world.env.links.iter().enumerate() {
        match &link.conversation {
            Conversation::Native(talk) => {
                for frame in talk.frames() {
                    let owner = frame.owner;
                    let key = frame.key.map_or(String::new(), |key| format!(" key {key}"));
                    if let Some(at) = frame.completed_at {
                        lines.push((at, format!("{index} asks {:?}{key} ({owner})", frame.ask)));
                    }
                    if let Some((reply, at)) = frame.answer {
                        lines.push((at, format!("{index} is told {reply:?}")));
                    }
                }
            }
            Conversation::Dlm(talk) => {
                let id = talk.id();
                if let Some(at) = talk.completed_at {
                    let key = talk.key();
                    let operation = format!("{:.60}", format!("{:?}", talk.operation()));
                    lines.push((at, format!("{index} asks {operation} key {key} ({id})")));
                }
                if let Some((status, _, at)) = talk.told {
                    lines.push((at, format!("{index} is told {status:?} ({id})")));
                }
            }
        }
        if let Some(at) = link.ended_at {
            lines.push((at, format!("{index} ends by {:?}", link.end)));
        }
    }
    lines.sort();
    let skipped = lines.len().saturating_sub(MOST_LINES);
    let shown = lines[skipped..].iter();
    shown
        .map(|(at, line)| format!("{:>14} {line}\n", at.as_nanos() / 1_000))
        .collect()
}

/// Has panics noted, and printed only outside of [`try_play`].
fn note_faults() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            if !IS_QUIET.get() {
                return print(info);
            }
            let kind = info.location().map_or(String::new(), ToString::to_string);
            let payload = info.payload();
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string));
            let message = text.unwrap_or_default();
            LAST.set(Some(Fault { kind, message }));
        }));
    });
}
