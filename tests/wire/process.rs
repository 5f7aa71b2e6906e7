//! The server as a program: its ready line, its exit codes, its drain, and the
//! guard against a second one.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::client::Client;
use crate::common::configuration::{Configuration, in_every_configuration};
use crate::common::directory::Directory;
use crate::common::server::{Ended, Server, serve_command};
use crate::common::wire::{Reply, acquire, acquire_ms, extend, ping, release};

const LONG_S: u8 = 250;

/// A server that must not start; besides its log it said one line, which names `named`.
fn assert_refuses(flags: &[&str], code: i32, named: &str) {
    let mut command = serve_command();
    command.args(["--dlm-listen", "off"]).args(flags);
    let ended = match Server::launch(command) {
        Err(ended) => ended,
        Ok(_) => panic!("it starts with {flags:?}"),
    };
    assert_eq!(ended.code, Some(code), "{flags:?}: {}", ended.stderr);
    // A line of the log begins with its time, in brackets.
    let lines = ended.stderr.lines().filter(|line| !line.starts_with('['));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 1, "{flags:?}: {lines:#?}");
    assert!(lines[0].contains(named), "{flags:?}: {lines:#?}");
}

/// Newer kernels count a ring's memory under RLIMIT_MEMLOCK, of users who are not
/// above it; older ones do not, and the server starts.
#[test]
fn a_ring_that_a_limit_forbids_is_refused_with_the_limit_s_name() {
    let serve =
        r#"ulimit -l 16 && exec "$@" serve --listen 127.0.0.1:0 --dlm-listen off --io uring"#;
    let mut command = Command::new("sh");
    command.args(["-c", serve, "sh"]);
    if rustix::process::geteuid().is_root() {
        command.args(["setpriv", "--bounding-set", "-ipc_lock"]);
    }
    command.arg(env!("CARGO_BIN_EXE_leasehold"));
    match Server::launch(command) {
        Ok(server) => assert!(server.ready_line().contains("io=uring")),
        Err(ended) if ended.stderr.contains("setpriv: not found") => {
            println!("skipped: {}", ended.stderr);
        }
        Err(ended) => {
            assert_eq!(ended.code, Some(1), "{}", ended.stderr);
            assert!(ended.stderr.contains("--io uring: "), "{}", ended.stderr);
            let is_forbidden = ["io_uring is forbidden", "RLIMIT_MEMLOCK is 16384"];
            let named = is_forbidden.iter().any(|why| ended.stderr.contains(why));
            assert!(named, "{}", ended.stderr);
        }
    }
}

#[test]
fn the_ready_line_says_where_and_how_it_serves() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let address = server.address();
        let Configuration { io, loops } = configuration;
        assert_eq!(
            server.ready_line(),
            format!("ready listen={address} dlm=off admin=off io={io} shards={loops}")
        );
        let port = address.strip_prefix("127.0.0.1:").unwrap();
        assert_ne!(port.parse::<u16>().unwrap(), 0);
        server.connect().expect_quiet();
    });
}

#[test]
fn every_listener_serves_the_same_locks() {
    in_every_configuration(|configuration| {
        let directory = Directory::new("listeners");
        let unix = format!("unix:{}", directory.file("socket"));
        let flags = ["--listen", "[::1]:0", "--listen", &unix];
        let server = Server::start(configuration, &flags);
        let listen = server.addresses();
        assert_eq!(listen.len(), 3);
        assert!(listen[1].starts_with("[::1]:"));
        assert_eq!(listen[2], unix);
        let mut clients: Vec<Client> = listen
            .iter()
            .map(|address| Client::connect(address).unwrap())
            .collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(&acquire(1, 0, LONG_S, number.to_string()));
            client.granted(1);
        }
        for client in &mut clients {
            for number in 0..listen.len() {
                assert!(client.state(number.to_string()).held);
            }
        }
    });
}

#[test]
fn a_bad_flag_exits_2_and_is_named() {
    for (flags, named) in [
        (&["--nonsense"][..], "--nonsense"),
        (&["--listen", "nowhere"], "--listen"),
        (&["--listen", "127.0.0.1"], "--listen"),
        (&["--listen", "127.0.0.1:65536"], "--listen"),
        (&["--io", "magic"], "--io"),
        (&["--shards", "0"], "--shards"),
        (&["--shards", "many"], "--shards"),
        (&["--max-key-bytes", "0"], "--max-key-bytes"),
        (&["--max-key-bytes", "16385"], "--max-key-bytes"),
        (&["--max-keys", "0"], "--max-keys"),
        (&["--max-keys", "-1"], "--max-keys"),
        (&["--max-waiters-per-key", "0"], "--max-waiters-per-key"),
        (&["--max-waiters", "0"], "--max-waiters"),
        (&["--max-session-waiters", "0"], "--max-session-waiters"),
        (&["--max-connections", "0"], "--max-connections"),
        (&["--max-memory", "lots"], "--max-memory"),
        (&["--max-lease", "0"], "--max-lease"),
        (&["--max-lease", "31d"], "--max-lease"),
        (&["--max-lease", "2592001"], "--max-lease"),
        (&["--max-wait", "2592001"], "--max-wait"),
        (&["--max-wait", "-1"], "--max-wait"),
        (&["--expiry-grace-ms", "-1"], "--expiry-grace-ms"),
        (&["--drain-seconds", "soon"], "--drain-seconds"),
        (&["--credentials-file"], "--credentials-file"),
    ] {
        assert_refuses(flags, 2, named);
    }
}

#[test]
fn what_cannot_start_exits_1_and_names_the_address_or_the_file() {
    let directory = Directory::new("cannot-start");
    let missing = directory.file("missing");
    let bad = directory.file("bad");
    std::fs::write(&bad, "web not-a-hash\n").unwrap();
    let nowhere = directory.file("no/such/socket");
    let unix = format!("unix:{nowhere}");
    let listen = ["--listen", "127.0.0.1:0"];
    let credentials = |file| [&listen[..], &["--credentials-file", file]].concat();
    assert_refuses(&credentials(&missing), 1, &missing);
    assert_refuses(&credentials(&bad), 1, &bad);
    // TEST-NET-1: nobody's own address.
    assert_refuses(&["--listen", "192.0.2.1:0"], 1, "192.0.2.1:0");
    assert_refuses(&["--listen", &unix], 1, &nowhere);
}

#[test]
fn s54_a_second_server_on_the_same_address_exits_1_and_names_it() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let mut holder = server.connect();
        holder.send(&acquire(1, 0, LONG_S, "k"));
        holder.granted(1);
        let address = server.address();
        let port = address.strip_prefix("127.0.0.1:").unwrap();
        let everywhere = format!("0.0.0.0:{port}");
        for listen in [address, &everywhere] {
            let io = configuration.flags();
            let flags: Vec<&str> = io.iter().map(String::as_str).collect();
            assert_refuses(&[&["--listen", listen], &flags[..]].concat(), 1, listen);
        }
        assert!(holder.state("k").held);
        assert!(
            server.connect().state("k").held,
            "new clients meet the first"
        );
    });
}

#[test]
fn s54_servers_started_at_once_on_one_address_leave_one() {
    in_every_configuration(|configuration| {
        for _ in 0..10 {
            let address = {
                // No other test listens on this loopback address.
                let free = std::net::TcpListener::bind("127.0.54.1:0").unwrap();
                free.local_addr().unwrap().to_string()
            };
            let start = || {
                let mut command = serve_command();
                command
                    .args(["--listen", &address, "--dlm-listen", "off"])
                    .args(configuration.flags());
                Server::launch(command)
            };
            let results: Vec<Result<Server, Ended>> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect()
            });
            let serving = results.iter().filter(|result| result.is_ok()).count();
            assert_eq!(serving, 1);
            for ended in results.iter().filter_map(|result| result.as_ref().err()) {
                assert_eq!(ended.code, Some(1));
                assert!(ended.stderr.contains(&address), "{}", ended.stderr);
            }
        }
    });
}

#[test]
fn s54_a_unix_socket_in_use_is_refused_and_a_stale_one_taken_over() {
    in_every_configuration(|configuration| {
        let directory = Directory::new("stale");
        let path = directory.file("socket");
        let unix = format!("unix:{path}");
        let start = || {
            let mut command = serve_command();
            command
                .args(["--listen", &unix, "--dlm-listen", "off"])
                .args(configuration.flags());
            Server::launch(command)
        };
        let server = start().unwrap();
        let mut client = Client::connect(&unix).unwrap();
        client.expect_quiet();
        let refused = start().err().unwrap();
        assert_eq!(refused.code, Some(1));
        assert!(refused.stderr.contains(&path), "{}", refused.stderr);
        client.expect_quiet();
        Client::connect(&unix).unwrap().expect_quiet();
        // Killed, it leaves its socket file behind.
        drop(server);
        assert!(std::path::Path::new(&path).exists());
        let _next = start().unwrap();
        Client::connect(&unix).unwrap().expect_quiet();
        // What is no socket is nobody's to remove.
        let file = directory.file("file");
        std::fs::write(&file, "mine").unwrap();
        assert_refuses(&["--listen", &format!("unix:{file}")], 1, &file);
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    });
}

#[test]
fn drain_with_nothing_held_exits_0_at_once() {
    in_every_configuration(|configuration| {
        for signal in [Signal::TERM, Signal::INT] {
            let mut server = Server::start(configuration, &["--drain-seconds", "600"]);
            let mut client = server.connect();
            client.expect_quiet();
            server.signal(signal);
            client.expect_end();
            assert_eq!(server.wait().code, Some(0));
        }
    });
}

#[test]
fn drain_serves_holders_until_nothing_is_held() {
    in_every_configuration(|configuration| {
        let mut server = Server::start(configuration, &["--drain-seconds", "600"]);
        let mut holder = server.connect();
        holder.send(&[acquire(1, 0, LONG_S, "k"), acquire(2, 0, LONG_S, "l")].concat());
        let k = holder.granted(1).token;
        let l = holder.granted(2).token;
        let mut waiting = server.connect();
        waiting.send(&acquire(3, LONG_S, LONG_S, "k"));
        waiting.await_state("k", |state| state.waiters == 1);
        server.signal(Signal::TERM);
        waiting.expect_error(3, 8);
        holder.send(&[ping(4), extend(5, LONG_S + 1, k, "k"), release(6, l, "l")].concat());
        holder.expect(Reply::Pong(4));
        assert!(matches!(holder.reply(), Reply::Extended { owner: 5, .. }));
        holder.expect(Reply::Released(6));
        waiting.send(&acquire(7, 0, 1, "l"));
        waiting.expect_error(7, 8);
        assert!(waiting.state("k").held);
        holder.send(&release(8, k, "k"));
        holder.expect(Reply::Released(8));
        holder.expect_end();
        waiting.expect_end();
        assert_eq!(server.wait().code, Some(0));
    });
}

#[test]
fn drain_takes_no_new_connection() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &["--drain-seconds", "600"]);
        let mut control = server.drain();
        // A connection may still be taken by the kernel, but is never served.
        if let Ok(mut late) = Client::connect(server.address()) {
            assert!(!late.answers_ping());
        }
        control.expect_quiet();
    });
}

#[test]
fn drain_ends_when_the_last_lease_does() {
    in_every_configuration(|configuration| {
        let mut server = Server::start(configuration, &["--drain-seconds", "600"]);
        let mut holder = server.connect();
        let sent = holder.send(&acquire_ms(1, 0, 400, "k"));
        holder.granted(1);
        server.signal(Signal::TERM);
        holder.expect_end();
        assert!(sent.elapsed() >= Duration::from_millis(400));
        assert_eq!(server.wait().code, Some(0));
    });
}

#[test]
fn drain_ends_after_drain_seconds_whatever_is_held() {
    in_every_configuration(|configuration| {
        let mut server = Server::start(configuration, &["--drain-seconds", "300ms"]);
        let mut holder = server.connect();
        holder.send(&acquire(1, 0, LONG_S, "k"));
        holder.granted(1);
        let signalled = Instant::now();
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code, Some(0));
        assert!(signalled.elapsed() >= Duration::from_millis(300));
        holder.expect_end();
    });
}

#[test]
fn a_second_signal_exits_at_once_with_128_and_its_number() {
    in_every_configuration(|configuration| {
        for (first, second, code) in [
            (Signal::TERM, Signal::TERM, 143),
            (Signal::TERM, Signal::INT, 130),
            (Signal::INT, Signal::TERM, 143),
        ] {
            let mut server = Server::start(configuration, &["--drain-seconds", "600"]);
            let mut holder = server.connect();
            holder.send(&[acquire(1, 0, LONG_S, "k"), acquire(2, LONG_S, 1, "k")].concat());
            holder.granted(1);
            server.signal(first);
            // The drain has begun: two signals in one would be one to the kernel.
            holder.expect_error(2, 8);
            server.signal(second);
            assert_eq!(server.wait().code, Some(code), "{first:?}, {second:?}");
        }
    });
}

#[test]
fn standard_output_carries_the_ready_line_alone_whatever_is_logged() {
    in_every_configuration(|configuration| {
        let mut command = serve_command();
        command
            .args(["--listen", "127.0.0.1:0", "--dlm-listen", "off"])
            .args(configuration.flags())
            .env("RUST_LOG", "trace");
        let server = Server::launch(command).unwrap();
        let mut client = server.connect();
        client.send(&acquire(1, 0, LONG_S, "k"));
        client.granted(1);
        client.expect_quiet();
        // Dropping it checks that nothing but the ready line went to standard output.
    });
}
