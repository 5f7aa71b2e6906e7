//! What a request costs to cross to another loop and be answered, without kernel,
//! sessions or lock table: the mesh alone, on one thread or between two that spin.

use std::error::Error;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use clap::Parser;
use leasehold::ids::{GrantRef, SessionId};
use leasehold::mesh::{self, MeshPort, Message};
use leasehold::protocol::Request;
use leasehold_bench::host;

/// Nanoseconds per acquire that crosses and its grant that comes back. CPU time
/// is the asking thread's.
#[derive(Debug, Parser)]
struct Flags {
    /// Acquires sent in one turn, answered before the next.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,
    /// Length of the key.
    #[arg(long, default_value_t = 16)]
    key_bytes: usize,
    /// Messages that a ring holds; at least the depth.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    ring: u32,
    /// Acquires per run.
    #[arg(long, default_value_t = 2_000_000)]
    requests: u64,
    /// Runs, of which the median is printed, and the one that used the least CPU.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Answer on a thread of its own.
    #[arg(long)]
    two_threads: bool,
    /// Cores for the asking and the answering thread.
    #[arg(long, num_args = 2)]
    pin: Option<Vec<usize>>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    if flags.ring < flags.depth {
        return Err("--ring is less than --depth".into());
    }
    let (mut runs_ns, mut runs_cpu_ns) = (Vec::new(), Vec::new());
    for _ in 0..flags.repeats {
        let cpu_ns_before = host::cpu_time_ns(std::process::id())?;
        runs_ns.push(run(&flags)? / flags.requests as f64);
        let cpu_ns = host::cpu_time_ns(std::process::id())? - cpu_ns_before;
        runs_cpu_ns.push(cpu_ns as f64 / flags.requests as f64);
    }
    runs_ns.sort_by(f64::total_cmp);
    runs_cpu_ns.sort_by(f64::total_cmp);
    let middle = runs_ns.len() / 2;
    println!(
        "threads={} depth={} key_bytes={} ring={} ns_per_request={:.1} \
         cpu_ns_per_request={:.1} least_cpu_ns={:.1}",
        1 + u32::from(flags.two_threads),
        flags.depth,
        flags.key_bytes,
        flags.ring,
        runs_ns[middle],
        runs_cpu_ns[middle],
        runs_cpu_ns[0],
    );
    Ok(())
}

/// Nanoseconds that all requests took.
fn run(flags: &Flags) -> Result<f64, Box<dyn Error>> {
    let mut ports = mesh::build(2, flags.ring as usize).into_iter();
    let (Some(mut asking), Some(mut answering)) = (ports.next(), ports.next()) else {
        return Err("no ports".into());
    };
    let cores = flags.pin.as_deref().unwrap_or_default();
    if let Some(core) = cores.first() {
        host::pin_to_core(*core)?;
    }
    if !flags.two_threads {
        return Ok(ask_all(flags, &mut asking, || answer(&mut answering)));
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let answers = scope.spawn(|| {
            if let Some(core) = cores.last() {
                host::pin_to_core(*core)?;
            }
            while !is_over.load(Ordering::Relaxed) {
                answer(&mut answering);
                spin_loop();
            }
            std::io::Result::Ok(())
        });
        let took_ns = ask_all(flags, &mut asking, spin_loop);
        is_over.store(true, Ordering::Relaxed);
        answers
            .join()
            .map_err(|_| "the answering thread panicked")??;
        Ok(took_ns)
    })
}

/// Asks in turns of `depth` and takes every answer; `meanwhile` is what happens
/// between two looks for them.
fn ask_all(flags: &Flags, port: &mut MeshPort, mut meanwhile: impl FnMut()) -> f64 {
    let key = vec![b'k'; flags.key_bytes];
    let session = SessionId::new(port.outbound.loop_index(), 0, 0);
    let mut owner = 0;
    let start = Instant::now();
    while owner < flags.requests {
        let mut unanswered = 0;
        while unanswered < flags.depth && owner < flags.requests {
            owner += 1;
            let request = Request::Acquire {
                owner,
                wait_ms: 1000,
                lease_ms: 5000,
                key: black_box(&key),
            };
            if port
                .outbound
                .try_request(1, session, false, &request)
                .is_err()
            {
                owner -= 1;
                break;
            }
            unanswered += 1;
        }
        assert_eq!(
            port.poll_wakes().count(),
            0,
            "the other loop does not sleep"
        );
        while unanswered > 0 {
            meanwhile();
            port.gather(256);
            port.inbound.drain(|message| {
                black_box(message);
                unanswered -= 1;
            });
        }
    }
    start.elapsed().as_nanos() as f64
}

/// One turn of the loop that grants.
fn answer(port: &mut MeshPort) {
    port.gather(256);
    port.inbound.drain(|message| {
        if let Message::Request {
            session, request, ..
        } = message
            && let Request::Acquire { owner, key, .. } = request.as_request()
        {
            let grant = GrantRef {
                entry: black_box(key).len() as u32,
                token: owner,
            };
            port.outbound.granted(*session, owner, grant, 0);
        }
    });
    assert_eq!(
        port.poll_wakes().count(),
        0,
        "the other loop does not sleep"
    );
}
