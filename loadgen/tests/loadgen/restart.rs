//! A server that goes away, and one that comes back.

use super::common::{Server, loadgen};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

fn start(arguments: &str) -> Child {
    loadgen(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

fn text(mut stream: impl std::io::Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("UTF-8");
    text
}

/// Waits until clients wait for that key, and have done so for longer than a run takes to
/// get under way.
fn await_load(server: &Server, key_holder: &str) {
    use leasehold::client::{Connection, Key};
    let address = server.address.parse().expect("an address");
    let patience = Duration::from_secs(20);
    let mut connection = Connection::connect(&address, None, patience).expect("it serves");
    let key = Key::new(key_holder).expect("a key");
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_millis(50) {
        if connection.query(&key).expect("it serves").waiters == 0 {
            since = Instant::now();
        }
    }
}

#[test]
fn a_server_that_goes_away_ends_the_run_with_what_was_measured() {
    let server = Server::start("127.0.0.1:0");
    let run = start(&format!(
        "run --server {} --seconds 60 --warmup 0 --json {HELD}",
        server.address
    ));
    await_load(&server, FIRST_SHARED_KEY);
    drop(server);
    let output = run.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(error.lines().count(), 1, "{error}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["violations"], 0, "{report}");
}

/// One key that all wait for, so that the load can be seen from outside.
const HELD: &str = "--workload contended --keys 1 --hold 1ms --connections 4";
/// The text of key 0 of the first activity.
const FIRST_SHARED_KEY: &str = "0000000000000000";

#[test]
fn a_restart_is_watched_across() {
    let server = Server::start("127.0.0.1:0");
    let address = server.address.clone();
    let run = start(&format!(
        "run --server {address} --seconds 60 --warmup 0 --json --reconnect --lease 200ms {HELD}"
    ));
    await_load(&server, FIRST_SHARED_KEY);
    drop(server);
    // Every lease that it granted is over before another one grants.
    std::thread::sleep(Duration::from_millis(200));
    let server = Server::start(&address);
    await_load(&server, FIRST_SHARED_KEY);
    interrupt(&run);
    let output = run.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["violations"], 0, "{report}");
    assert_eq!(report["interrupted"], true, "{report}");
    assert!(report["reconnections"].as_u64() >= Some(4), "{report}");
    assert!(
        report["outcomes"]["indeterminate"].as_u64() > Some(0),
        "{report}"
    );
}

#[test]
fn an_interrupt_prints_the_results_so_far() {
    let server = Server::start("127.0.0.1:0");
    let mut run = start(&format!(
        "run --server {} --seconds 60 --warmup 0 {HELD}",
        server.address
    ));
    await_load(&server, FIRST_SHARED_KEY);
    interrupt(&run);
    let table = text(run.stdout.take().expect("a pipe"));
    assert_eq!(run.wait().expect("it ends").code(), Some(0));
    assert!(
        table.contains("(ended early)") && table.contains("acquire"),
        "{table}"
    );
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
}
