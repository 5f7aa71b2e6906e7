//! The server as a program: its ready line, its exit codes, its drain, and the
//! guard against a second one.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::client::Client;
use crate::common::configuration::{Configuration, in_every_configuration};
use crate::common::directory::Directory;
use crate::common::server::{Ended, Server, serve_command};
use crate::common::wire::{Reply, acquire, acquire_ms, extend, ping, release};

const LONG_S: u8 = 250;

/// A server that must not start; what it said is one line that names `named`.
fn assert_refuses(flags: &[&str], code: i32, named: &str) {
    let mut command = serve_command();
    command.args(["--dlm-listen", "off"]).args(flags);
    let ended = match Server::launch(command) {
        Err(ended) => ended,
        Ok(_) => panic!("it starts with {flags:?}"),
    };
    assert_eq!(ended.code, Some(code), "{flags:?}: {}", ended.stderr);
    // What is logged before, which driver was chosen or that a listener is open to all,
    // begins with its time and level.
    let is_log = |line: &&str| line.starts_with('[');
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| !is_log(line)).collect();
    assert_eq!(lines.len(), 1, "{flags:?}: {lines:#?}");
    assert!(lines[0].starts_with("error: "), "{flags:?}: {lines:#?}");
    assert!(lines[0].contains(named), "{flags:?}: {lines:#?}");
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
        assert_eq!(server.routing().loops, loops, "as Welcome says");
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
        (&["--shards", "1025"], "--shards"),
        (&["--pin", "on"], "--pin"),
        (&["--pin", "1,1"], "--pin"),
        (&["--spin-us", "-1"], "--spin-us"),
        (&["--busy-poll-us", "soon"], "--busy-poll-us"),
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
fn drain_serves_holders_until_nothing_is_held_on_any_loop() {
    in_every_configuration(|configuration| {
        let mut server = Server::start(configuration, &["--drain-seconds", "600"]);
        let routing = server.routing();
        let keys = |prefix| -> Vec<String> {
            let all = 0..routing.loops;
            all.map(|loop_index| routing.key(loop_index, prefix))
                .collect()
        };
        let (kept, released) = (keys("kept"), keys("released"));
        let mut holder = server.connect();
        let kept_tokens = holder.hold_all(&kept, LONG_S);
        let released_tokens = holder.hold_all(&released, LONG_S);
        let mut waiting = server.connect();
        for (owner, key) in (1..).zip(&kept) {
            waiting.send(&acquire(owner, LONG_S, LONG_S, key));
            waiting.await_state(key, |state| state.waiters == 1);
        }
        server.signal(Signal::TERM);
        // All loops drain once all of these have come.
        for (owner, reply) in (1..).zip(waiting.replies_by_owner(kept.len())) {
            assert_eq!(reply, Reply::Error { owner, code: 8 });
        }
        for index in 0..kept.len() {
            let (kept, released) = (&kept[index], &released[index]);
            holder.send(
                &[
                    ping(4),
                    extend(5, LONG_S + 1, kept_tokens[index], kept),
                    release(6, released_tokens[index], released),
                ]
                .concat(),
            );
            let replies = holder.replies_by_owner(3);
            assert!(
                matches!(
                    replies[..],
                    [
                        Reply::Pong(4),
                        Reply::Extended { owner: 5, .. },
                        Reply::Released(6)
                    ]
                ),
                "{replies:?}"
            );
            waiting.send(&acquire(7, 0, 1, released));
            waiting.expect_error(7, 8);
        }
        // It is not over while anything is held on any loop.
        for (index, (key, token)) in kept.iter().zip(kept_tokens).enumerate() {
            for (later, key) in kept.iter().enumerate() {
                assert_eq!(waiting.state(key).held, later >= index);
            }
            holder.send(&release(8, token, key));
            holder.expect(Reply::Released(8));
        }
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

/// The cores that this process may use.
fn usable_cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    let all = 0..rustix::thread::CpuSet::MAX_CPU;
    all.filter(|&core| set.is_set(core)).collect()
}

/// The cores that each of a server's loops may use, by loop.
fn cores_of_loops(server: &Server) -> Vec<String> {
    let mut cores: Vec<(String, String)> =
        std::fs::read_dir(format!("/proc/{}/task", server.pid()))
            .unwrap()
            .map(|thread| {
                let status = thread.unwrap().path().join("status");
                let status = std::fs::read_to_string(status).unwrap();
                let field = |name: &str| {
                    let line = status.lines().find_map(|line| line.strip_prefix(name));
                    line.unwrap().trim().to_owned()
                };
                (field("Name:"), field("Cpus_allowed_list:"))
            })
            .filter(|(name, _)| name.starts_with("loop-"))
            .collect();
    cores.sort();
    cores.into_iter().map(|(_, cores)| cores).collect()
}

#[test]
fn pinned_loops_stay_on_their_cores() {
    let usable = usable_cores();
    in_every_configuration(|configuration| {
        let loops = usize::from(configuration.loops);
        if loops > usable.len() {
            return;
        }
        let in_order: Vec<String> = usable[..loops].iter().map(usize::to_string).collect();
        let backwards: Vec<String> = in_order.iter().rev().cloned().collect();
        let list = backwards.join(",");
        for (pin, expected) in [("auto", &in_order), (&list, &backwards)] {
            let server = Server::start(configuration, &["--pin", pin]);
            // A loop has its core before it serves.
            for mut client in server.connect_everywhere() {
                client.expect_quiet();
            }
            assert_eq!(cores_of_loops(&server), *expected, "--pin {pin}");
        }
    });
}

#[test]
fn cores_that_cannot_be_had_exit_1_and_name_pin() {
    let usable = usable_cores();
    let refused = |flags: &[&str]| {
        let listen = ["--listen", "127.0.0.1:0", "--io", "epoll"];
        assert_refuses(&[&listen[..], flags].concat(), 1, "--pin");
    };
    let too_many = (usable.len() + 1).to_string();
    refused(&["--shards", &too_many, "--pin", "auto"]);
    let all = 0..rustix::thread::CpuSet::MAX_CPU;
    let forbidden = all.rev().find(|core| !usable.contains(core)).unwrap();
    refused(&["--shards", "1", "--pin", &forbidden.to_string()]);
    let two = format!("{},{forbidden}", usable[0]);
    refused(&["--shards", "2", "--pin", &two]);
    refused(&["--shards", "1", "--pin", &two]);
    refused(&["--shards", "2", "--pin", &usable[0].to_string()]);
}

/// What goes on between loops, and with time.
fn assert_serves(server: &Server) {
    let routing = server.routing();
    for mut client in server.connect_everywhere() {
        for loop_index in 0..routing.loops {
            let key = routing.key(loop_index, "k");
            client.send(&[acquire_ms(1, 0, 5, &key), acquire(2, LONG_S, LONG_S, &key)].concat());
            client.granted(1);
            let token = client.granted(2).token;
            client.send(&[acquire_ms(3, 5, 1, &key), release(4, token, &key)].concat());
            let replies = client.replies_by_owner(2);
            match replies[..] {
                [
                    Reply::Acquired { owner: 3, .. } | Reply::TimedOut(3),
                    Reply::Released(4),
                ] => {}
                _ => panic!("{replies:?}"),
            }
            client.await_state(&key, |state| !state.held);
        }
    }
}

#[test]
fn loops_that_spin_before_they_sleep_serve_and_end_as_others_do() {
    in_every_configuration(|configuration| {
        for spin_us in ["1", "200", "5000"] {
            let mut server = Server::start(configuration, &["--spin-us", spin_us]);
            assert_serves(&server);
            let mut idle = server.connect();
            idle.expect_quiet();
            server.signal(Signal::TERM);
            idle.expect_end();
            assert_eq!(server.wait().code, Some(0));
        }
    });
}

#[test]
fn busy_polling_serves_or_exits_1_and_is_named() {
    in_every_configuration(|configuration| {
        match Server::try_start(configuration, &["--busy-poll-us", "50"]) {
            Ok(server) => assert_serves(&server),
            // It takes CAP_NET_ADMIN.
            Err(ended) => {
                assert_eq!(ended.code, Some(1));
                let error = ended.stderr.lines().last().unwrap();
                assert!(error.starts_with("error: "), "{error}");
                assert!(error.contains("--busy-poll-us"), "{error}");
            }
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
