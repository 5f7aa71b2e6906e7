//! One run: threads started, told when to measure, watched, and their results gathered.

use crate::check::{Expected, Ledger, SharedLedger, TokenTable, shown_history, verify};
use crate::clients::{Clients, MAX_LANES, Rules, Violation};
use crate::event_loop::{Control, EventLoop, Go, Habits, Summary};
use crate::host;
use crate::options::{Arrivals, RouteOption};
use crate::plan::{Plan, Target, total_keys};
use crate::probe::Facts;
use crate::progress::Progress;
use crate::record::{Recorder, Second};
use crate::report::{Figures, Report, Totals, percentile_curve, round};
use crate::target::{Codec, DlmCodec, DlmTemplates, EchoCodec, LineCodec, NativeCodec, RedisCodec};
use crate::timeline::Timeline;
use crate::workload::{Close, HELD_SPACE, KeyId, KeyText, Kind, Place, Random, Schedule, Streams};
use leasehold::clock;
use leasehold::protocol::ANY_LOOP;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// What a run has brought.
#[derive(Debug)]
pub(crate) struct Measured {
    /// The figures.
    pub(crate) report: Report,
    /// What they were made of.
    pub(crate) totals: Totals,
    /// Of a violation: the history of its key, line by line.
    pub(crate) history: Vec<String>,
    /// One line, if the server went away.
    pub(crate) failure: Option<String>,
}

const NANOS_PER_S: f64 = 1e9;
/// From the order to go until the first arrival: all threads are awake by then.
const RUN_UP_NS: u64 = 2_000_000;
/// How often a run looks whether it is to end.
const GLANCE: Duration = Duration::from_millis(100);
/// Keys of each activity whose state is asked for at the end.
const MAX_VERIFIED: u64 = 65_536;
/// How long to wait, at the end, for answers that no lock holds up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the plan. `interrupted` is set by a signal.
///
/// # Errors
/// One line: nothing could be measured.
pub(crate) fn run(
    plan: &Plan,
    facts: &Facts,
    interrupted: &AtomicBool,
) -> Result<Measured, String> {
    match plan.target {
        Target::Native => {
            let greets = plan.route != RouteOption::Off || !plan.credential.is_empty();
            drive(plan, facts, interrupted, |connection, _| match greets {
                false => NativeCodec::silent(),
                true => {
                    let place = place_of(plan, facts, connection);
                    let wanted = place.map_or(ANY_LOOP, |place| place.loop_index);
                    NativeCodec::greeting(wanted, &plan.credential)
                }
            })
        }
        Target::Dlm => {
            let templates = dlm_templates(plan, facts);
            drive(plan, facts, interrupted, |_, client| {
                DlmCodec::new(Arc::clone(&templates), client)
            })
        }
        Target::Redis => drive(plan, facts, interrupted, |_, _| {
            RedisCodec::new(Arc::clone(&facts.release_hash))
        }),
        Target::Echo if plan.is_one_shot() => {
            let templates = dlm_templates(plan, facts);
            drive(plan, facts, interrupted, |_, client| {
                LineCodec(DlmCodec::new(Arc::clone(&templates), client))
            })
        }
        Target::Echo => drive(plan, facts, interrupted, |_, _| EchoCodec::default()),
    }
}

fn dlm_templates(plan: &Plan, facts: &Facts) -> Arc<[DlmTemplates]> {
    let of = |lease_ms, data_bytes| {
        let identity = plan.identity.as_ref();
        DlmTemplates::new(plan.key_bytes, lease_ms, data_bytes, identity, plan.checks)
    };
    let activities = plan
        .activities
        .iter()
        .map(|it| of(it.lease_ms, it.data_bytes));
    activities
        .chain(std::iter::once(of(plan.held_lease_ms(facts), 0)))
        .collect()
}

/// Where the session of this connection belongs.
fn place_of(plan: &Plan, facts: &Facts, connection: u32) -> Option<Place> {
    (plan.route != RouteOption::Off).then(|| Place {
        loops: facts.loops,
        seed: facts.routing_seed,
        loop_index: (connection % u32::from(facts.loops)) as u16,
        is_remote: plan.route == RouteOption::Remote,
    })
}

/// A thread that has been started.
struct Worker {
    go: Sender<Go>,
    thread: std::thread::JoinHandle<Result<Summary, String>>,
}

/// What the keys of the run are kept in.
struct Books {
    shared: Vec<Option<Arc<SharedLedger>>>,
}

impl Books {
    fn new(plan: &Plan) -> Books {
        let shared = plan.activities.iter().map(|activity| {
            let is_shared = !activity.kind.has_private_keys();
            is_shared.then(|| Arc::new(SharedLedger::new(activity.keys)))
        });
        Books {
            shared: shared.collect(),
        }
    }

    /// For a thread with so many clients.
    fn ledgers<C: Codec>(&self, plan: &Plan, streams: &Streams, lanes: u64) -> Vec<Ledger> {
        let of = |(index, shared): (usize, &Option<Arc<SharedLedger>>)| match shared {
            Some(shared) => Ledger::Shared(Arc::clone(shared)),
            None if plan.checks && C::HAS_TOKENS => {
                Ledger::Private(TokenTable::new(lanes * streams.span(index)))
            }
            None => Ledger::Off,
        };
        self.shared.iter().enumerate().map(of).collect()
    }
}

fn drive<C: Codec + Send + 'static>(
    plan: &Plan,
    facts: &Facts,
    interrupted: &AtomicBool,
    codec: impl Fn(u32, u32) -> C,
) -> Result<Measured, String> {
    let control = Arc::new(Control::default());
    let books = Books::new(plan);
    let streams = Streams::new(plan.seed, plan.clients(), &plan.activities);
    let (ready_sender, ready) = channel();
    let (second_sender, seconds) = channel();
    let mut workers = Vec::new();
    for thread in 0..plan.threads {
        let share = |all: u64, index: u32| all * u64::from(index) / u64::from(plan.threads);
        let connections = share(plan.connections.into(), thread) as u32
            ..share(plan.connections.into(), thread + 1) as u32;
        let lanes = connections.len() as u64 * u64::from(plan.depth);
        if lanes > MAX_LANES {
            return Err("--connections x --depth: too many for a thread".into());
        }
        let rules = Rules {
            activities: plan.activities.clone(),
            streams: streams.clone(),
            held_lease_ms: plan.held_lease_ms(facts),
            key_bytes: plan.key_bytes,
            checks: plan.checks,
            is_bare: plan.target == Target::Echo,
        };
        let recorder = Recorder::new(plan.rate.is_some(), second_sender.clone());
        let mut clients = Clients::new(rules, books.ledgers::<C>(plan, &streams, lanes), recorder);
        let mut parts = Vec::new();
        for (index, connection) in connections.enumerate() {
            let first = index as u32 * plan.depth;
            let first_client = connection * plan.depth;
            for client in first_client..first_client + plan.depth {
                clients.add(index as u32, client, place_of(plan, facts, connection))?;
            }
            parts.push((codec(connection, first_client), first..first + plan.depth));
        }
        let to_hold = share(plan.held, thread)..share(plan.held, thread + 1);
        let core = match plan.cores.len() {
            0 => None,
            count => Some(plan.cores[thread as usize % count]),
        };
        let (habits, control) = (habits(plan), Arc::clone(&control));
        let (ready, (go_sender, go)) = (ready_sender.clone(), channel());
        let prepare = move || {
            if let Some(core) = core {
                host::pin_to_core(core).map_err(|error| format!("--pin {core}: {error}"))?;
            }
            let made = EventLoop::new(habits, control, clients);
            let mut event_loop = made.map_err(|error| format!("epoll: {error}"))?;
            for (codec, lanes) in parts {
                event_loop.add(codec, lanes);
            }
            Ok(event_loop)
        };
        let work = move || match prepare() {
            Ok(event_loop) => event_loop.run(to_hold, &ready, &go),
            Err(what) => {
                // Whoever waits for it has seen another thread fail, and does not mind.
                let _ = ready.send(Err(String::clone(&what)));
                Err(what)
            }
        };
        workers.push(Worker {
            go: go_sender,
            thread: std::thread::spawn(work),
        });
    }
    drop((ready_sender, second_sender));
    if let Err(what) = await_ready(&ready, plan.threads, &control, interrupted) {
        control.stop();
        for Worker { go, thread } in workers {
            drop(go);
            // It has nothing to tell that is not known.
            let _ = thread.join();
        }
        return Err(what);
    }
    let result = measure(plan, &control, interrupted, workers, &seconds);
    finish(plan, &control, &books, &streams, interrupted, result)
}

fn habits(plan: &Plan) -> Habits {
    let waits = plan.activities.iter().map(|activity| activity.wait_ms);
    let longest_wait = Duration::from_millis(waits.max().unwrap_or(0).into());
    let churn = plan.activities.iter().find(|it| it.kind == Kind::Churn);
    Habits {
        server: plan.server.clone(),
        reconnects: plan.reconnects,
        churns: churn.is_some(),
        close: churn.map_or(Close::Fin, |churn| churn.close),
        patience: PATIENCE + longest_wait,
    }
}

/// Waits until every thread is connected and holds what it is to hold.
fn await_ready(
    ready: &Receiver<Result<(), String>>,
    threads: u32,
    control: &Control,
    interrupted: &AtomicBool,
) -> Result<(), String> {
    let mut waiting = threads;
    while waiting > 0 {
        match ready.recv_timeout(GLANCE) {
            Ok(result) => {
                result?;
                waiting -= 1;
            }
            Err(RecvTimeoutError::Disconnected) => return Err("a thread ended early".into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if interrupted.load(Ordering::Relaxed) {
            control.stop();
            return Err("interrupted before the measurement began".into());
        }
    }
    Ok(())
}

/// What was seen from outside the threads.
struct Outside {
    seconds: f64,
    server_cpu_ns: Option<u64>,
    timeline: Timeline,
    summaries: Vec<Summary>,
    failure: Option<String>,
}

fn measure(
    plan: &Plan,
    control: &Control,
    interrupted: &AtomicBool,
    workers: Vec<Worker>,
    seconds: &Receiver<Second>,
) -> Outside {
    let start_ns = clock::now().as_nanos() + RUN_UP_NS;
    let from_ns = start_ns + plan.warmup.as_nanos() as u64;
    let to_ns = from_ns + plan.seconds.as_nanos() as u64;
    for (index, worker) in workers.iter().enumerate() {
        // A thread that is gone has told why, and is asked for it at the end.
        let _ = worker.go.send(Go {
            from_ns,
            to_ns,
            schedule: schedule(plan, start_ns, index as u32),
        });
    }
    let mut progress = Progress::new(plan);
    let mut timeline = Timeline::new(plan.threads);
    let pid = plan.server_pid.or_else(|| match plan.server.is_local() {
        true => host::listener_pid(&plan.server),
        false => None,
    });
    let sample = || pid.and_then(|pid| host::cpu_time_ns(pid).ok());
    let mut watch = |until_ns: u64| loop {
        let left_ns = until_ns.saturating_sub(clock::now().as_nanos());
        if left_ns == 0 || control.is_stopped() {
            return;
        }
        match seconds.recv_timeout(GLANCE.min(Duration::from_nanos(left_ns))) {
            Ok(second) => timeline.add(second),
            // All threads have ended.
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        progress.show(&timeline, clock::now().as_nanos().saturating_sub(start_ns));
        if interrupted.load(Ordering::Relaxed) {
            control.stop();
        }
    };
    watch(from_ns);
    let before = sample();
    watch(to_ns);
    let after = sample();
    let end_ns = clock::now().as_nanos().min(to_ns);
    progress.finish();
    let mut failure = None;
    let mut summaries = Vec::new();
    for worker in workers {
        match worker.thread.join() {
            Ok(Ok(summary)) => summaries.push(summary),
            Ok(Err(what)) => {
                failure.get_or_insert(what);
                control.stop();
            }
            Err(_) => {
                failure.get_or_insert_with(|| "a thread failed".into());
            }
        }
    }
    for second in seconds.try_iter() {
        timeline.add(second);
    }
    Outside {
        seconds: (end_ns.saturating_sub(from_ns) as f64 / NANOS_PER_S).max(1e-9),
        server_cpu_ns: after
            .zip(before)
            .and_then(|(end, start)| end.checked_sub(start)),
        timeline,
        summaries,
        failure,
    }
}

fn schedule(plan: &Plan, start_ns: u64, thread: u32) -> Option<Schedule> {
    let rate = plan.rate? / plan.requests_per_round() / f64::from(plan.threads);
    Some(match plan.arrivals {
        Arrivals::Uniform => {
            let offset = f64::from(thread) / f64::from(plan.threads);
            Schedule::uniform(start_ns, rate, offset)
        }
        Arrivals::Poisson => {
            // Clients have the streams from 0 on.
            let random = Random::new(plan.seed, u64::MAX - u64::from(thread));
            Schedule::poisson(start_ns, rate, random)
        }
    })
}

fn finish(
    plan: &Plan,
    control: &Control,
    books: &Books,
    streams: &Streams,
    interrupted: &AtomicBool,
    outside: Outside,
) -> Result<Measured, String> {
    let summaries = &outside.summaries;
    let is_dlm = plan.target == Target::Dlm;
    let totals = Totals::of(summaries.iter().map(|it| &it.records[..]), is_dlm);
    let reconnections = summaries.iter().map(|it| it.reconnections).sum();
    let generator_cpu_ns = summaries.iter().map(|it| it.cpu_ns).sum();
    let mut failure = outside.failure;
    let mut violation = control.violation();
    let mut verified_keys = 0;
    let is_whole = violation.is_none() && failure.is_none() && reconnections == 0;
    if plan.checks && plan.target == Target::Native && is_whole {
        let keys = expected_states(plan, books, streams, summaries);
        let mut text = KeyText::new(plan.key_bytes);
        match verify(&plan.server, &plan.credential, &keys, &mut text) {
            Ok(Ok(())) => verified_keys = keys.len() as u64,
            Ok(Err(found)) => violation = Some(found),
            Err(what) => failure = Some(what),
        }
    }
    let history = match violation.as_ref().and_then(|violation| violation.key) {
        None => Vec::new(),
        Some(key) => {
            let events = summaries.iter().flat_map(|summary| summary.history_of(key));
            shown_history(events.collect())
        }
    };
    let errors = totals.errors();
    let per_request = |cpu_ns: u64| round(cpu_ns as f64 / totals.completed.max(1) as f64);
    let mut all = Figures::of(&totals.all, totals.completed, errors, outside.seconds);
    all.server_cpu_ns_per_request = outside.server_cpu_ns.map(per_request);
    all.violations = u64::from(violation.is_some());
    let operations = totals.operations().map(|(name, record)| {
        let (completed, errors) = (record.completed, record.errors);
        let figures = Figures::of(&record.latency_ns, completed, errors, outside.seconds);
        (name.to_owned(), figures)
    });
    let report = Report {
        target: plan.target.name().into(),
        server: plan.server.to_string(),
        workload: plan.workload.clone(),
        connections: plan.connections,
        depth: plan.depth,
        threads: plan.threads,
        rate: plan.rate,
        keys: total_keys(&plan.activities),
        held: plan.held,
        seed: plan.seed,
        check: plan.checks,
        seconds: outside.seconds,
        interrupted: interrupted.load(Ordering::Relaxed),
        requests: totals.completed.saturating_sub(errors),
        all,
        outcomes: totals.outcomes(),
        violation: violation.map(|violation| in_words(&violation, plan)),
        unsent: summaries.iter().map(|it| it.unsent).sum(),
        reconnections,
        verified_keys,
        generator_cpu_ns_per_request: per_request(generator_cpu_ns),
        operations: operations.collect(),
        timeline: outside.timeline.finish(),
        percentiles: percentile_curve(&totals.all),
    };
    Ok(Measured {
        report,
        totals,
        history,
        failure,
    })
}

fn in_words(violation: &Violation, plan: &Plan) -> String {
    match violation.key {
        None => violation.what.clone(),
        Some(key) => {
            let name = KeyText::new(plan.key_bytes).shown(key);
            format!("key {name}: {}", violation.what)
        }
    }
}

/// Of each activity's keys, or of as many as are asked for, what the answers said.
fn expected_states(
    plan: &Plan,
    books: &Books,
    streams: &Streams,
    summaries: &[Summary],
) -> Vec<(KeyId, Expected)> {
    let unsure: HashSet<KeyId> = summaries
        .iter()
        .flat_map(|summary| summary.unsure.iter().copied())
        .collect();
    let mut keys = Vec::new();
    for (index, shared) in books.shared.iter().enumerate() {
        match shared {
            Some(ledger) => {
                let numbers = spaced(ledger.len());
                let free = numbers.filter(|number| ledger.key(*number).is_surely_free());
                keys.extend(free.map(|number| (KeyId::new(index as u8, number), Expected::Free)));
            }
            None => {
                let numbers = spaced(plan.clients() * streams.span(index));
                let ids = numbers.map(|number| KeyId::new(index as u8, number));
                keys.extend(
                    ids.filter(|key| !unsure.contains(key))
                        .map(|key| (key, Expected::Free)),
                );
            }
        }
    }
    let held = spaced(plan.held).map(|number| (KeyId::new(HELD_SPACE, number), Expected::Held));
    keys.extend(held);
    keys
}

/// Numbers below `count`, all of them or so many that are asked for, evenly spaced.
fn spaced(count: u64) -> impl Iterator<Item = u64> {
    let step = count.div_ceil(MAX_VERIFIED).max(1);
    (0..count).step_by(step as usize)
}
