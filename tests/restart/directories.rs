//! Which directory it is, whose it is, and what is in it.

use std::fs;
use std::process::Command;

use super::{expect_taken, kill, start, take};
use crate::common::configuration::{CONFIGURATIONS, Configuration};
use crate::common::directory::Directory;
use crate::common::server::{Ended, Server, serve_command};
use crate::exchange::{bare, expect, lock, own};

const CONFIGURATION: Configuration = CONFIGURATIONS[0];

fn refusal(state: &str) -> Ended {
    let mut command = serve_command();
    command
        .args(["--listen", "127.0.0.1:0", "--dlm-listen", "off"])
        .arg("--state-dir")
        .arg(state);
    Server::launch(command).expect_err("it is to be refused")
}

#[track_caller]
fn assert_refused(state: &str, words: &[&str]) {
    let Ended { code, stderr } = refusal(state);
    assert_eq!(code, Some(1), "{stderr}");
    let errors: Vec<&str> = stderr
        .lines()
        .filter(|it| it.starts_with("error"))
        .collect();
    assert_eq!(errors.len(), 1, "one clear line: {stderr}");
    for word in words.iter().chain(&["--state-dir", state]) {
        assert!(errors[0].contains(word), "{word:?} is not in {}", errors[0]);
    }
}

/// The files of the state's two copies.
fn copies(state: &str) -> Vec<std::path::PathBuf> {
    let mut copies: Vec<_> = fs::read_dir(state)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("state")
        })
        .collect();
    copies.sort();
    assert_eq!(copies.len(), 2, "{copies:?}");
    copies
}

#[test]
fn s54_a_second_server_on_one_directory_is_refused() {
    let state = Directory::new("restart");
    let server = start(CONFIGURATION, state.path(), &[]);
    let mut client = server.connect();
    take(&mut client, "k", 60_000);
    assert_refused(state.path(), &["in use"]);
    // The first has noticed nothing.
    expect_taken(&mut client, "k");
}

#[test]
fn a_copy_that_is_damaged_or_missing_is_made_good() {
    let state = Directory::new("restart");
    kill(start(CONFIGURATION, state.path(), &[]));
    for damaged in 0..2 {
        let server = start(CONFIGURATION, state.path(), &["--grace", "skip"]);
        take(&mut server.connect(), "k", 60_000);
        kill(server);
        fs::write(&copies(state.path())[damaged], "not a state").unwrap();
        let server = start(CONFIGURATION, state.path(), &[]);
        expect_taken(&mut server.connect(), "k");
        kill(server);
        fs::remove_file(&copies(state.path())[damaged]).unwrap();
        let server = start(CONFIGURATION, state.path(), &[]);
        expect_taken(&mut server.connect(), "k");
        kill(server);
    }
}

#[test]
fn nothing_is_served_when_both_copies_are_damaged() {
    let state = Directory::new("restart");
    kill(start(CONFIGURATION, state.path(), &[]));
    for copy in copies(state.path()) {
        fs::write(copy, "not a state").unwrap();
    }
    assert_refused(state.path(), &[]);
}

#[test]
fn a_directory_that_cannot_be_one_is_refused() {
    let place = Directory::new("restart");
    let file = place.file("file");
    fs::write(&file, "").unwrap();
    assert_refused(&file, &[]);
    assert_refused(&format!("{file}/below"), &[]);
}

#[test]
fn the_default_is_named_after_the_address() {
    let place = Directory::new("restart");
    let socket = place.file("socket");
    let serve = |variable: &str| {
        let mut command: Command = serve_command();
        command
            .args(["--dlm-listen", "off", "--shards", "1", "--listen"])
            .arg(format!("unix:{}", socket))
            .env(variable, place.file(variable));
        Server::launch(command).unwrap_or_else(|ended| panic!("it did not start: {ended:?}"))
    };
    let is_root = rustix::process::geteuid().is_root();
    let variables = ["STATE_DIRECTORY", "XDG_STATE_HOME"];
    // Root's own place is the machine's, which a test leaves alone.
    let variables = if is_root {
        &variables[..1]
    } else {
        &variables[..]
    };
    for variable in variables {
        let mut server = serve(variable);
        server.signal(rustix::process::Signal::TERM);
        assert_eq!(server.wait().code, Some(0));
        let base = match *variable {
            "XDG_STATE_HOME" => place.file("XDG_STATE_HOME/leasehold"),
            _ => place.file(variable),
        };
        let names: Vec<_> = fs::read_dir(base)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert!(names[0].contains("socket"), "{names:?}");
    }
}

#[test]
fn going_without_is_warned_of() {
    for flags in [&["--state-dir", "none"][..], &[]] {
        let mut server = Server::start(CONFIGURATION, flags);
        server.signal(rustix::process::Signal::TERM);
        let ended = server.wait();
        assert!(
            ended.stderr.contains("WARN") && ended.stderr.contains("--state-dir"),
            "{ended:?}"
        );
    }
}

#[test]
fn skipping_the_grace_is_said_loudly() {
    let state = Directory::new("restart");
    let server = start(CONFIGURATION, state.path(), &[]);
    take(&mut server.connect(), "k", 60_000);
    kill(server);
    let mut server = start(CONFIGURATION, state.path(), &["--grace", "skip"]);
    take(&mut server.connect(), "k", 1);
    server.signal(rustix::process::Signal::TERM);
    let ended = server.wait();
    assert!(
        ended.stderr.contains("ERROR") && ended.stderr.contains("--grace skip"),
        "{ended:?}"
    );
}

/// Starts a server whose files may have at most so many blocks of 512 bytes.
fn start_with_file_blocks(blocks: u32, state: &str) -> Result<Server, Ended> {
    let mut command = Command::new("sh");
    command
        .args(["-c", r#"ulimit -c 0 && ulimit -f "$0" && exec "$@""#])
        .arg(blocks.to_string())
        .arg(env!("CARGO_BIN_EXE_leasehold"))
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(["--dlm-listen", "127.0.0.1:0", "--state-dir", state]);
    Server::launch(command)
}

#[test]
fn a_limit_of_file_size_is_met_like_a_full_disk() {
    let state = Directory::new("restart");
    let ended = start_with_file_blocks(0, state.path()).expect_err("nothing can be written");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("--state-dir"), "{ended:?}");
    // Room for the state, and for no record.
    let server = start_with_file_blocks(1, state.path())
        .unwrap_or_else(|ended| panic!("the server did not start: {ended:?}"));
    expect(&server, &lock("A", "long", "3000"), &bare("NO"));
    expect(&server, &lock("A", "short", "5"), &own("Locked", "A"));
    take(&mut server.connect(), "k", 1_000);
}
