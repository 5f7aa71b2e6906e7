//! Flags to settings. How the environment takes part is tested on the binary
//! (tests/command_line.rs), since a test must not change its own environment.

use super::*;
use clap::{CommandFactory, Parser};

#[derive(Debug, Parser)]
struct Serve {
    #[command(flatten)]
    args: ServeArgs,
}

/// The settings that `flags`, separated by spaces, give.
fn config(flags: &str) -> Result<Config, String> {
    let arguments = std::iter::once("serve").chain(flags.split_whitespace());
    Serve::try_parse_from(arguments)
        .map_err(|error| error.to_string())?
        .args
        .into_config()
        .map_err(|error| error.to_string())
}

pub(super) fn accepted(flags: &str) -> Config {
    config(flags).unwrap_or_else(|error| panic!("{flags:?} was refused: {error}"))
}

#[test]
fn defaults_are_those_of_the_limits() {
    let config = accepted("");
    assert_eq!(
        config.listen,
        [Listen::Tcp(([127, 0, 0, 1], limits::NATIVE_PORT).into())]
    );
    assert_eq!(
        config.loops,
        LoopConfig {
            io: Io::Auto,
            shards: cores::default_shards(),
            pin: cores::Pin::Off,
            spin_us: 0,
            busy_poll_us: 0,
            admin: Unserved::Admin,
            drain_ms: 5_000,
        }
    );
    assert_eq!(
        config.limits,
        LimitConfig {
            max_key_bytes: limits::DEFAULT_MAX_KEY_BYTES,
            max_keys: limits::DEFAULT_MAX_KEYS,
            max_memory_bytes: memory::default_max_memory_bytes(),
            max_waiters_per_key: limits::DEFAULT_MAX_WAITERS_PER_KEY,
            max_waiters: limits::DEFAULT_MAX_WAITERS,
            max_session_waiters: limits::DEFAULT_MAX_SESSION_WAITERS,
            max_connections: limits::DEFAULT_MAX_CONNECTIONS,
            max_lease_ms: limits::DEFAULT_MAX_LEASE_MS,
            max_wait_ms: limits::DEFAULT_MAX_LEASE_MS,
            expiry_grace_ms: 0,
        }
    );
    assert_eq!(
        config.state,
        StateConfig {
            directory: None,
            grace: Grace::Wait
        }
    );
    assert_eq!(
        config.access,
        AccessConfig {
            credentials_file: None
        }
    );
    assert_eq!(
        config.connection,
        ConnectionConfig {
            output_soft_limit_bytes: limits::DEFAULT_OUTPUT_SOFT_LIMIT_BYTES,
            output_hard_limit_bytes: limits::DEFAULT_OUTPUT_HARD_LIMIT_BYTES,
            peer_timeout_ms: 20_000,
            keepalive_idle_s: 15,
            keepalive_interval_s: 5,
            keepalive_count: 3,
            linger_ms: 1_000,
            linger_bytes: 1 << 20,
            unix_mode: 0o660,
            backlog: 1_024,
        }
    );
    assert_eq!(
        config.dlm,
        DlmConfig {
            listen: Some(([0, 0, 0, 0], 37_373).into()),
            anonymous: false,
            anonymous_max_ttl_ms: limits::DEFAULT_DLM_ANONYMOUS_TTL_MS,
            anonymous_max_data_chars: limits::DEFAULT_DLM_DATA_CHARS,
            identities: IdentityDirectory {
                directory: "/home/JackrabbitDLM/Config".into()
            },
            max_ttl_ms: limits::DEFAULT_MAX_DLM_TTL_MS,
            max_connections: 16_384,
            max_buffered_bytes: 256 << 20,
            request_timeout_ms: 30_000,
            max_payload_bytes: 10 << 20,
        }
    );
}

#[test]
fn every_flag_reaches_its_setting() {
    let given = accepted(
        "--listen 127.0.0.1:0 --listen unix:/run/l.sock,[::1]:7 --io epoll --shards 3 --pin 4,2-3 --spin-us 31 --busy-poll-us 32 --admin-listen off --state-dir /s --grace skip \
         --drain-seconds 250ms --max-key-bytes 1KiB --max-keys 11 --max-memory 1GiB \
         --max-waiters-per-key 12 --max-waiters 13 --max-session-waiters 14 \
         --max-connections 15 --max-lease 3m --max-wait 0 --expiry-grace-ms 16 \
         --credentials-file /etc/c --output-soft-limit 2KiB --output-hard-limit 3KiB \
         --peer-timeout 17 --keepalive-idle 18 --keepalive-interval 19s \
         --keepalive-count 20 --linger-ms 21 --linger-bytes 22 --unix-mode 640 --backlog 23 \
         --dlm-listen off --dlm-anonymous --dlm-anonymous-ttl 29 --dlm-anonymous-data 30 --dlm-config-dir /d --max-dlm-ttl 24m \
         --max-dlm-connections 27 --dlm-max-buffered 28 --dlm-request-timeout 25 --dlm-max-payload 26",
    );
    assert_eq!(
        given,
        Config {
            listen: vec![
                Listen::Tcp(([127, 0, 0, 1], 0).into()),
                Listen::Unix("/run/l.sock".into()),
                Listen::Tcp((std::net::Ipv6Addr::LOCALHOST, 7).into()),
            ],
            loops: LoopConfig {
                io: Io::Epoll,
                shards: 3,
                pin: cores::Pin::Cores(vec![4, 2, 3]),
                spin_us: 31,
                busy_poll_us: 32,
                admin: Unserved::Admin,
                drain_ms: 250,
            },
            limits: LimitConfig {
                max_key_bytes: 1024,
                max_keys: 11,
                max_memory_bytes: 1 << 30,
                max_waiters_per_key: 12,
                max_waiters: 13,
                max_session_waiters: 14,
                max_connections: 15,
                max_lease_ms: 180_000,
                max_wait_ms: 0,
                expiry_grace_ms: 16,
            },
            state: StateConfig {
                directory: Some(StateDirectory::At("/s".into())),
                grace: Grace::Skip,
            },
            access: AccessConfig {
                credentials_file: Some("/etc/c".into()),
            },
            connection: ConnectionConfig {
                output_soft_limit_bytes: 2048,
                output_hard_limit_bytes: 3072,
                peer_timeout_ms: 17_000,
                keepalive_idle_s: 18,
                keepalive_interval_s: 19,
                keepalive_count: 20,
                linger_ms: 21,
                linger_bytes: 22,
                unix_mode: 0o640,
                backlog: 23,
            },
            dlm: DlmConfig {
                listen: None,
                anonymous: true,
                anonymous_max_ttl_ms: 29_000,
                anonymous_max_data_chars: 30,
                identities: IdentityDirectory {
                    directory: "/d".into(),
                },
                max_ttl_ms: 24 * 60_000,
                max_connections: 27,
                max_buffered_bytes: 28,
                request_timeout_ms: 25_000,
                max_payload_bytes: 26,
            },
        }
    );
}

#[test]
fn impossible_values_are_refused_with_the_flag_s_name() {
    for (flag, values) in [
        ("--listen", "localhost:1 127.0.0.1 unix: x 127.0.0.1:1,"),
        ("--dlm-listen", "unix:/x 37373 on"),
        ("--io", "poll EPOLL io_uring"),
        ("--shards", "0 1025 -1 65537 two"),
        ("--pin", "on 3-2 1,1 -1 1; 1024"),
        ("--spin-us", "-1 1000001 1s"),
        ("--busy-poll-us", "-1 1000001 1s"),
        ("--admin-listen", "127.0.0.1:9327 none on"),
        ("--grace", "none 5s on"),
        ("--drain-seconds", "-1 1441m 0.5 1h 18446744073709551617"),
        ("--max-key-bytes", "0 16385 17KiB -1 1.5KiB 1K"),
        ("--max-keys", "0 4294967296 -1 1e6 16M"),
        ("--max-memory", "0 1KiB 80% 18446744073709551615 1GB -1"),
        ("--max-waiters-per-key", "0 4294967295 -1 x"),
        ("--max-waiters", "0 4294967295 -1 x"),
        ("--max-session-waiters", "0 4294967295 -1 x"),
        ("--max-connections", "0 16777217 -1 x"),
        (
            "--max-lease",
            "0 0ms 0.5s 100us -5 43201m 4294967296ms never",
        ),
        ("--max-wait", "0.5s 100us -5 43201m 4294967296ms never"),
        ("--expiry-grace-ms", "0.5 100us -5 43201m 4294967296"),
        ("--output-soft-limit", "0 29 2GiB -1 x"),
        ("--output-hard-limit", "0 29 2048TiB -1 x"),
        ("--peer-timeout", "0 0.5 -1 1441m"),
        ("--keepalive-idle", "0 500ms 32768 -1"),
        ("--keepalive-interval", "0 500ms 32768 -1"),
        ("--keepalive-count", "0 128 -1 3s"),
        ("--linger-ms", "0 0.5 -1 86400001"),
        ("--linger-bytes", "0 -1 1MB"),
        ("--backlog", "0 65536 -1"),
        ("--max-dlm-ttl", "0 0.5 -1 5256001m"),
        ("--dlm-anonymous-ttl", "0 0.5 -1 5256001m"),
        ("--dlm-anonymous-data", "-1 16KiB 1073741825"),
        ("--dlm-request-timeout", "0 0.5 -1 1441m"),
        ("--dlm-max-payload", "0 -1 2GiB 10MB"),
    ] {
        for value in values.split(' ') {
            let error = config(&format!("{flag}={value}"))
                .expect_err(&format!("{flag}={value} must be refused"));
            assert!(error.contains(flag), "{flag}={value}: {error}");
        }
    }
}

#[test]
fn listeners_go_together_or_are_refused() {
    assert_eq!(accepted("--listen off").listen, []);
    assert_eq!(
        accepted("--listen 127.0.0.1:0,127.0.0.1:0").listen.len(),
        2,
        "two free ports are two addresses"
    );
    for flags in [
        "--listen off --dlm-listen off",
        "--listen off --listen 127.0.0.1:1",
        "--listen off,off",
        "--listen 127.0.0.1:1 --listen 127.0.0.1:1",
        "--listen unix:/x,unix:/x",
    ] {
        let error = config(flags).expect_err(flags);
        assert!(error.starts_with("--listen"), "{flags}: {error}");
    }
}

#[test]
fn the_hard_limit_lies_above_the_soft_one() {
    // 30 bytes: the longest reply.
    let least = 4096 + 30;
    let flags = |hard: usize| format!("--output-soft-limit 4KiB --output-hard-limit {hard}");
    accepted(&flags(least));
    let error = config(&flags(least - 1)).expect_err("one byte too little");
    for flag in ["--output-hard-limit", "--output-soft-limit"] {
        assert!(error.contains(flag), "{error}");
    }
    accepted("--max-session-waiters 1000000");
}

#[test]
fn every_flag_has_its_environment_variable_and_help() {
    let command = Serve::command();
    let flags: Vec<_> = command
        .get_arguments()
        .filter_map(|argument| Some((argument.get_long()?, argument)))
        .filter(|(long, _)| *long != "help")
        .collect();
    assert_eq!(flags.len(), 41);
    for (long, argument) in flags {
        let expected = format!("LEASEHOLD_{}", long.replace('-', "_").to_uppercase());
        assert_eq!(
            argument.get_env().and_then(std::ffi::OsStr::to_str),
            Some(expected.as_str())
        );
        assert!(argument.get_help().is_some(), "--{long} has no help");
    }
}

#[test]
fn listeners_show_themselves_as_given_and_know_loopback() {
    for (text, beyond_loopback) in [
        ("127.0.0.1:5327", false),
        ("127.9.9.9:1", false),
        ("[::1]:5327", false),
        ("[::ffff:127.0.0.1]:1", false),
        ("unix:/run/l.sock", false),
        ("0.0.0.0:5327", true),
        ("[::]:5327", true),
        ("192.0.2.1:1", true),
    ] {
        let config = accepted(&format!("--listen {text}"));
        assert_eq!(config.listen[0].to_string(), text);
        let expected: &[&str] = match beyond_loopback {
            true => &["--listen", "--dlm-listen"],
            false => &["--dlm-listen"],
        };
        assert_eq!(
            config.flags_that_listen_beyond_loopback(),
            expected,
            "{text}"
        );
    }
    for (text, expected) in [
        ("--dlm-listen off", &[][..]),
        ("--dlm-listen 127.0.0.1:1", &[]),
        ("--listen off --dlm-listen 0.0.0.0:1", &["--dlm-listen"]),
    ] {
        let found = accepted(text).flags_that_listen_beyond_loopback();
        assert_eq!(found, expected, "{text}");
    }
    let error = config("--max-connections 16777216").expect_err("with the DLM ones too many");
    for flag in ["--max-connections", "--max-dlm-connections"] {
        assert!(error.contains(flag), "{error}");
    }
}
