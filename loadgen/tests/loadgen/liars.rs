//! Servers that do what they may not: exit status 1, and the key's history.

use super::common::{fake_server, output};
use leasehold::protocol::{Reply, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The report and the errors of a run that must find a violation.
#[track_caller]
fn caught(arguments: &str) -> (serde_json::Value, String) {
    let output = output(&format!("run --seconds 20 --warmup 0 --json {arguments}"));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["violations"], 1, "{report}");
    (report, errors)
}

fn granted(owner: u64, token: u64) -> Vec<Reply> {
    vec![Reply::Acquired {
        owner,
        token,
        waited_ms: 0,
    }]
}

/// Grants everything at once, with growing tokens.
fn generous() -> String {
    let tokens = Arc::new(AtomicU64::new(1));
    fake_server(move |request| match request {
        Request::Acquire { owner, .. } => granted(owner, tokens.fetch_add(1, Ordering::SeqCst)),
        other => vec![Reply::Released {
            owner: other.owner(),
        }],
    })
}

#[test]
fn one_that_grants_twice_is_caught_with_the_key_s_history() {
    let address = generous();
    for threads in [1, 2] {
        let (report, errors) = caught(&format!(
            "--server {address} --workload contended --keys 1 --hold 50ms --connections 4 \
             --threads {threads}"
        ));
        assert!(errors.contains("two holders"), "{errors}");
        assert!(
            report["violation"]
                .as_str()
                .is_some_and(|it| it.starts_with("key "))
        );
        assert!(
            errors.matches("is granted the key").count() >= 2,
            "{errors}"
        );
        assert!(errors.contains("sends an acquire"), "{errors}");
    }
}

#[test]
fn what_is_not_watched_is_not_caught() {
    let address = generous();
    let run = output(&format!(
        "run --server {address} --workload contended --keys 1 --hold 10ms --connections 4 \
         --seconds 0.3 --warmup 0 --check off"
    ));
    assert_eq!(run.status.code(), Some(0), "{run:?}");
}

#[test]
fn one_whose_tokens_stand_still_is_caught() {
    let address = fake_server(|request| match request {
        Request::Acquire { owner, .. } => granted(owner, 7),
        other => vec![Reply::Released {
            owner: other.owner(),
        }],
    });
    let arguments = format!("--server {address} --keys 4 --connections 4");
    assert!(caught(&arguments).1.contains("token 7 after token 7"));
}

#[test]
fn one_that_answers_twice_is_caught() {
    let tokens = Arc::new(AtomicU64::new(1));
    let address = fake_server(move |request| match request {
        Request::Acquire { owner, .. } => {
            let grant = granted(owner, tokens.fetch_add(1, Ordering::SeqCst));
            [grant.clone(), grant].concat()
        }
        other => vec![Reply::Released {
            owner: other.owner(),
        }],
    });
    assert!(
        caught(&format!("--server {address}"))
            .1
            .contains("answered twice")
    );
}

#[test]
fn one_that_forgets_a_lease_is_caught() {
    let tokens = Arc::new(AtomicU64::new(1));
    let address = fake_server(move |request| match request {
        Request::Acquire { owner, .. } => granted(owner, tokens.fetch_add(1, Ordering::SeqCst)),
        other => vec![Reply::NotHeld {
            owner: other.owner(),
        }],
    });
    assert!(
        caught(&format!("--server {address}"))
            .1
            .contains("the lease was not over")
    );
}

#[test]
fn one_that_says_released_and_still_holds_is_caught_at_the_end() {
    let tokens = Arc::new(AtomicU64::new(1));
    let address = fake_server(move |request| match request {
        Request::Acquire { owner, .. } => granted(owner, tokens.fetch_add(1, Ordering::SeqCst)),
        Request::Query { owner, .. } => vec![Reply::State {
            owner,
            held: true,
            remaining_ms: 5,
            waiters: 0,
        }],
        other => vec![Reply::Released {
            owner: other.owner(),
        }],
    });
    let run = output(&format!(
        "run --server {address} --seconds 0.1 --warmup 0 --json"
    ));
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).contains("held at the end"));
}

#[test]
fn one_that_says_what_is_no_reply_is_caught() {
    let address = fake_server(|request| {
        vec![Reply::Pong {
            owner: request.owner(),
        }]
    });
    assert!(
        caught(&format!("--server {address}"))
            .1
            .contains("answers no request")
    );
}
