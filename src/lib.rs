//! A lock server for latency-critical Linux hosts: named locks with leases, fair
//! queues and fencing tokens.
//!
//! # One request's way
//!
//! A client's `A` frame arrives on a socket. In one turn of its loop:
//!
//! 1. [`driver`] learns from epoll that the socket is readable, reads a chunk, reads
//!    the [`clock`], and gives both to [`worker::Worker::handle_received`].
//! 2. [`worker`] finds the connection's `session`: what is left of an unfinished
//!    frame, what it is owed, how far it has come towards its end.
//! 3. [`protocol`] decodes one frame after the other in place. The key is borrowed
//!    from the chunk; "more bytes needed" is no error.
//! 4. [`engine`] judges the request at `now`: it finds the key's entry, ends what is
//!    over, grants or queues, and arms a timer. Its replies, to whomever, go into the
//!    outbox that the worker hands it.
//! 5. The outbox appends each reply to its session's output and lists the session.
//! 6. When everything received is judged and timers are run, the driver asks the
//!    worker what each listed session needs, and writes once per session.
//! 7. The driver sleeps until an event, or until the worker's next deadline.
//!
//! A server has several such loops, each a thread with everything of its own, and each
//! key has one owner among them ([`partition`]). Where step 4 finds that another loop
//! owns the key, the request crosses to it ([`mesh`]) as a message, is judged there in
//! that loop's next turn, and the reply crosses back to the session's loop: step 5.
//!
//! A JackrabbitDLM request comes the same way into `worker::dlm`: [`dlm`] decodes the
//! line and judges its fields, a thread of the driver reads its identity's file if
//! one is named, and [`engine`] does with the lock what it does for everybody.
//!
//! # The rooms
//!
//! | module | what is there | may use |
//! |---|---|---|
//! | [`limits`] | every maximum and default, their relations asserted | |
//! | [`ids`] | handles of sessions and grants | limits |
//! | [`stats`] | counters | |
//! | [`protocol`] | the native wire format: requests, replies | the above |
//! | [`dlm`] | JackrabbitDLM's: code, requests, replies, identities | the above |
//! | [`partition`] | which loop owns a key | |
//! | [`durability`] | what loops and the store tell each other | |
//! | [`mesh`] | what loops send each other, and whom to wake for it | protocol, dlm |
//! | [`engine`] | locks, queues, data, timers; `engine::time` is its idea of time | protocol |
//! | [`credentials`] | who may connect | |
//! | `session` | one connection's cursors and its end | protocol, dlm |
//! | [`worker`] | one loop's turn: bytes in, bytes out; `worker::dlm` for the other protocol, `worker::mesh` for the other loops | engine, session, mesh, partition, protocol, dlm, credentials |
//! | [`config`] | flags and environment, checked once | protocol, engine |
//! | [`clock`] | the only reader of clocks | |
//! | [`store`] | what survives a restart, and the thread that writes it | durability, clock |
//! | [`driver`] | sockets, epoll and io_uring, threads, signals, identity files | worker, session, mesh, config, credentials, dlm, clock |
//! | [`client`] | blocking clients of both protocols | protocol, dlm, clock |
//! | `main.rs` | the command and its subcommands | all |
//!
//! All of them may use the first three and `engine::time`. Only driver, store, client,
//! clock and main reach the kernel; what else reads a file says so in
//! `tests/structure`, which holds the source to this table.
//!
//! # Rules that hold everywhere
//!
//! - Time is passed in: `handle_*` takes `now`, `poll_timeout` gives the next
//!   deadline. So the whole of a loop but its sockets can be run by a test.
//! - `handle_*` puts something in, `poll_*` takes something out and says when to ask
//!   again.
//! - Whatever a peer can make grow has a limit, and the limit is a flag.
//! - A handle names a slot and its generation: one that comes too late finds nobody.
//! - `invariants()` says what must hold between two calls; tests call it after each.
//!
//! The protocols are written down in `docs/`.

pub mod client;
pub mod clock;
pub mod config;
pub mod credentials;
pub mod dlm;
pub mod driver;
pub mod durability;
pub mod engine;
pub mod ids;
pub mod limits;
pub mod mesh;
pub mod partition;
pub mod protocol;
mod session;
pub mod stats;
pub mod store;
pub mod worker;

/// The example that README shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
