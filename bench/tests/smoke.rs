//! The measuring tools run against each other with tiny inputs, so that they cannot rot.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};

struct Echo {
    child: Child,
    address: String,
}

impl Echo {
    fn start(flags: &[&str]) -> Echo {
        let mut child = Command::new(env!("CARGO_BIN_EXE_echo"))
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("ready listen=")
            .unwrap()
            .to_owned();
        Echo { child, address }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn echo_answers_both_lengths_in_turn_at_every_split() {
    let echo = Echo::start(&[]);
    let requests: Vec<u8> = (0..62 * 3 + 28).map(|byte| byte as u8).collect();
    for split in 1..requests.len() {
        let mut stream = TcpStream::connect(&echo.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&requests[..split]).unwrap();
        stream.write_all(&requests[split..]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut replies = Vec::new();
        stream.read_to_end(&mut replies).unwrap();
        assert_eq!(replies.len(), 32 * 3 + 22, "split at {split}");
        for pair in replies.chunks(32) {
            assert_eq!((pair[0], pair[21]), (b'A', b'\n'));
            assert!(pair.len() == 22 || (pair[22] == b'R' && pair[31] == b'\n'));
        }
    }
}

#[test]
fn one_shot_answers_a_line_and_closes() {
    let echo = Echo::start(&["--close"]);
    for _ in 0..20 {
        let mut stream = TcpStream::connect(&echo.address).unwrap();
        stream.write_all(b"a request\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.len(), 101);
        assert!(answer.ends_with(b"\n"));
    }
}

#[test]
fn the_load_generator_s_frames_have_the_lengths_that_are_answered() {
    use leasehold::protocol::Request;
    let echo = Echo::start(&[]);
    let key = b"0123456789abcdef";
    let mut frames = Vec::new();
    let acquire = Request::Acquire {
        owner: 1,
        wait_ms: 0,
        lease_ms: 10_000,
        key,
    };
    acquire.encode(&mut frames);
    let release = Request::Release {
        owner: 2,
        token: 1,
        key,
    };
    release.encode(&mut frames);
    let mut stream = TcpStream::connect(&echo.address).unwrap();
    stream.write_all(&frames).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut replies = Vec::new();
    stream.read_to_end(&mut replies).unwrap();
    assert_eq!(replies.len(), 22 + 10);
}

#[test]
fn a_mesh_hop_is_measured_on_one_thread_and_on_two() {
    for more in [&[][..], &["--two-threads"], &["--depth", "1"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_mesh_hop"))
            .args(["--requests", "1000", "--repeats", "3", "--ring", "16"])
            .args(["--key-bytes", "100"])
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(" cpu_ns_per_request="), "{text}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_mesh_hop"))
        .args(["--ring", "16", "--depth", "17"])
        .output()
        .unwrap();
    assert!(!output.status.success(), "more at once than fit the ring");
}
