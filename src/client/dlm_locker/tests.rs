//! The client against a scripted server on loopback.

use super::*;
use crate::dlm::{DlmLimits, ParsedRequest, Verdict};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread::JoinHandle;

const HOUR: Duration = Duration::from_secs(3600);

/// A listener that plays one step of its script on each connection.
struct FakeServer {
    port: u16,
    thread: JoinHandle<Vec<Asked>>,
}

/// What one connection asked.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    id: String,
    file_name: String,
    claim: Option<(String, String)>,
    operation: Operation<'static>,
}

/// What one connection gets.
enum Step {
    /// This JSON text as an answer.
    Say(&'static str),
    /// This JSON text, once so much time has passed since the request arrived.
    SayAfter(Duration, &'static str),
    /// These bytes, then the end.
    Raw(&'static [u8]),
    /// Bytes as long as the client takes them, never a whole line.
    Endless,
}

const LOCKED: Step = Step::Say(r#"{"Status":"Locked","ID":"A"}"#);
const UNLOCKED: Step = Step::Say(r#"{"Status":"Unlocked","ID":"A"}"#);
const NOT_OWNER: Step = Step::Say(r#"{"Status":"NotOwner"}"#);
const NOTHING: Step = Step::Raw(b"");

impl FakeServer {
    fn start(script: Vec<Step>) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let thread = std::thread::spawn(move || {
            let play = |step| {
                let (stream, _) = listener.accept().expect("a client");
                serve(stream, step)
            };
            script.into_iter().map(play).collect()
        });
        FakeServer { port, thread }
    }

    /// A locker "A" of "k" that sleeps between attempts no longer than it must.
    fn locker(&self, retry: u32) -> Locker {
        self.builder().retry(retry).build()
    }

    fn builder(&self) -> LockerBuilder {
        Locker::builder("k")
            .id("A")
            .port(self.port)
            .retry_sleep(Duration::ZERO)
    }

    /// What was asked, once the script has been played to its end.
    fn finish(self) -> Vec<Asked> {
        self.thread.join().expect("the script went as written")
    }

    fn operations(self) -> Vec<Operation<'static>> {
        self.finish()
            .into_iter()
            .map(|asked| asked.operation)
            .collect()
    }
}

fn serve(mut stream: TcpStream, step: Step) -> Asked {
    let mut decoder = Decoder::new(64 * 1024 * 1024);
    let mut chunk = vec![0; 64 * 1024];
    while decoder.push(&[]) == Progress::Pending {
        let length = stream.read(&mut chunk).expect("more of the request");
        assert_ne!(length, 0, "the request has its newline");
        decoder.push(&chunk[..length]);
    }
    let arrived = clock::now();
    let asked = asked(decoder.text());
    match step {
        Step::Say(answer) => say(&mut stream, answer),
        Step::SayAfter(pause, answer) => {
            while clock::now() < arrived.plus_millis(whole_ms(pause)) {
                std::thread::yield_now();
            }
            say(&mut stream, answer);
        }
        Step::Raw(bytes) => stream.write_all(bytes).expect("sent"),
        Step::Endless => while stream.write_all(b"1a").is_ok() {},
    }
    asked
}

fn say(stream: &mut TcpStream, answer: &str) {
    let mut line = Vec::new();
    dlm::encode(answer.as_bytes(), &mut line);
    line.push(b'\n');
    stream.write_all(&line).expect("sent");
}

fn asked(text: &[u8]) -> Asked {
    let limits = DlmLimits {
        max_key_bytes: 1024,
        max_ttl_ms: u64::MAX,
        anonymous_allowed: true,
        anonymous_max_ttl_ms: u64::MAX,
        anonymous_max_data_chars: u64::MAX,
    };
    let verdict = Verdict::Accepted {
        max_data_chars: u64::MAX,
    };
    let request = ParsedRequest::parse(text, &limits)
        .and_then(|parsed| parsed.judge(verdict))
        .expect("a request by the rules");
    Asked {
        id: request.id.into(),
        file_name: request.file_name.into(),
        claim: request
            .claim
            .map(|claim| (claim.name.into(), claim.identity.into())),
        operation: match request.operation {
            Operation::Put { ttl_ms, data_store } => Operation::Put {
                ttl_ms,
                data_store: data_store.into_owned().into(),
            },
            Operation::Lock { ttl_ms } => Operation::Lock { ttl_ms },
            Operation::Unlock => Operation::Unlock,
            Operation::TestLock => Operation::TestLock,
            Operation::Get => Operation::Get,
            Operation::Erase => Operation::Erase,
            Operation::Version => Operation::Version,
        },
    }
}

#[test]
fn a_lock_counts_from_before_it_was_asked_for() {
    let server = FakeServer::start(vec![LOCKED]);
    let before = clock::now();
    let outcome = server.locker(0).lock(HOUR);
    let after = clock::now();
    let LockOutcome::Locked { until } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(until >= before.plus_millis(3_600_000) && until <= after.plus_millis(3_600_000));
    let asked = server.finish();
    assert_eq!(
        asked,
        [Asked {
            id: "A".into(),
            file_name: "k".into(),
            claim: None,
            operation: Operation::Lock { ttl_ms: 3_600_000 },
        }]
    );
}

#[test]
fn a_lock_held_by_another_is_tried_again_so_often_and_no_more() {
    let server = FakeServer::start(vec![NOT_OWNER, NOT_OWNER, LOCKED]);
    assert!(matches!(
        server.locker(2).lock(HOUR),
        LockOutcome::Locked { .. }
    ));
    assert_eq!(server.finish().len(), 3);

    let server = FakeServer::start(vec![NOT_OWNER, NOT_OWNER, NOT_OWNER]);
    assert!(matches!(server.locker(2).lock(HOUR), LockOutcome::NotOwner));
    assert_eq!(server.finish().len(), 3);
}

#[test]
fn a_single_attempt_is_single() {
    for (step, held) in [(LOCKED, true), (NOT_OWNER, false)] {
        let server = FakeServer::start(vec![step]);
        match server.locker(7).try_lock(HOUR) {
            LockOutcome::Locked { .. } => assert!(held),
            LockOutcome::NotOwner => assert!(!held),
            LockOutcome::Failed(failure) => panic!("{failure}"),
        }
        server.finish();
    }
    let server = FakeServer::start(vec![NOTHING]);
    let outcome = server.locker(7).try_lock(HOUR);
    assert!(matches!(outcome, LockOutcome::Failed(Failure::NoAnswer(_))));
    server.finish();
}

/// Scenario 47: the grant stays, so the second answer is as good as the first.
#[test]
fn a_lost_answer_is_asked_for_again_on_a_new_connection() {
    for lost in [
        NOTHING,
        Step::Raw(b"1a"),
        Step::Raw(b"not a code\n"),
        Step::Say(r#"{"Status":"Maybe"}"#),
        Step::Say("[]"),
    ] {
        let server = FakeServer::start(vec![lost, LOCKED]);
        assert!(matches!(
            server.locker(1).lock(HOUR),
            LockOutcome::Locked { .. }
        ));
        assert_eq!(
            server.operations(),
            vec![Operation::Lock { ttl_ms: 3_600_000 }; 2]
        );
    }
}

#[test]
fn a_lock_that_is_over_when_it_arrives_is_a_failure() {
    let late = || Step::SayAfter(Duration::from_millis(1), r#"{"Status":"Locked","ID":"A"}"#);
    let server = FakeServer::start(vec![late()]);
    let outcome = server.locker(0).lock(Duration::from_millis(1));
    assert!(
        matches!(outcome, LockOutcome::Failed(Failure::TooLate)),
        "{outcome:?}"
    );
    server.finish();

    // Also where the attempt before was in time but refused.
    let server = FakeServer::start(vec![NOT_OWNER, late(), late()]);
    let outcome = server.locker(2).lock(Duration::from_millis(1));
    assert!(
        matches!(outcome, LockOutcome::Failed(Failure::TooLate)),
        "{outcome:?}"
    );
    server.finish();
}

#[test]
fn nothing_is_slept_after_the_last_attempt() {
    let ages = Duration::from_secs(u64::MAX);
    let server = FakeServer::start(vec![NOT_OWNER, NOTHING, UNLOCKED]);
    let locker = server.builder().retry(0).retry_sleep(ages).build();
    assert!(matches!(locker.lock(HOUR), LockOutcome::NotOwner));
    assert!(matches!(locker.unlock(), UnlockOutcome::Failed(_)));
    // Nor before the first one, or after a final answer.
    let locker = server.builder().retry(7).retry_sleep(ages).build();
    assert!(matches!(locker.unlock(), UnlockOutcome::Unlocked));
    server.finish();
}

#[test]
fn what_the_server_decided_is_final() {
    for (answer, status) in [
        (r#"{"Status":"BadPayload"}"#, Status::BadPayload),
        (r#"{"Status":"BadAction"}"#, Status::BadAction),
        (r#"{"Status":"NO"}"#, Status::No),
        (r#"{"Status":"Done"}"#, Status::Done),
    ] {
        let server = FakeServer::start(vec![Step::Say(answer)]);
        let outcome = server.locker(7).lock(HOUR);
        let LockOutcome::Failed(Failure::Answered(answered)) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(answered, status);
        server.finish();
    }
    let server = FakeServer::start(vec![NOT_OWNER]);
    assert!(matches!(server.locker(7).unlock(), UnlockOutcome::NotOwner));
    server.finish();
}

#[test]
fn a_look_at_the_lock_takes_nothing() {
    let server = FakeServer::start(vec![
        LOCKED,
        Step::Say(r#"{"Status":"Unlocked"}"#),
        NOT_OWNER,
        Step::Say(r#"{"Status":"NO"}"#),
    ]);
    let locker = server.locker(0);
    assert!(matches!(locker.test_lock(), TestOutcome::Locked));
    assert!(matches!(locker.test_lock(), TestOutcome::Unlocked));
    assert!(matches!(locker.test_lock(), TestOutcome::NotOwner));
    assert!(matches!(locker.test_lock(), TestOutcome::Failed(_)));
    assert_eq!(server.operations(), vec![Operation::TestLock; 4]);
}

#[test]
fn data_is_stored_in_the_code_of_the_wire() {
    // "{" is byte 123 = 1 * 78 + 45; "é" is the bytes 195 = 2 * 78 + 39 and 169 = 2 * 78 + 13.
    for (data, stored) in [("", ""), ("{", "a^"), ("é", "A$Ae")] {
        assert_eq!(WireCodec.encode(data), stored);
        assert_eq!(WireCodec.decode(stored).as_deref(), Some(data));
    }
    // No code, and no UTF-8.
    for stored in ["a", "{}", "A$"] {
        assert_eq!(WireCodec.decode(stored), None, "{stored}");
    }

    let server = FakeServer::start(vec![
        Step::Say(r#"{"Status":"Done","ID":"A"}"#),
        Step::Say(r#"{"Status":"Done","ID":"A","DataStore":"a^"}"#),
        Step::Say(r#"{"Status":"Done","ID":"A","DataStore":""}"#),
        Step::Say(r#"{"Status":"Done","ID":"A","DataStore":"a^1"}"#),
        Step::Say(r#"{"Status":"Done","ID":"A"}"#),
    ]);
    let locker = server.locker(0);
    assert!(matches!(locker.put(HOUR, "{"), PutOutcome::Done));
    assert!(matches!(locker.get(), GetOutcome::Done(data) if data == "{"));
    assert!(matches!(locker.get(), GetOutcome::Done(data) if data.is_empty()));
    assert!(matches!(locker.get(), GetOutcome::Failed(Failure::BadData)));
    assert!(matches!(
        locker.get(),
        GetOutcome::Failed(Failure::BadReply(_))
    ));
    let put = Operation::Put {
        ttl_ms: 3_600_000,
        data_store: "a^".into(),
    };
    let get = Operation::Get;
    assert_eq!(
        server.operations(),
        [put, get.clone(), get.clone(), get.clone(), get]
    );
}

struct Reversed;

impl DataCodec for Reversed {
    fn encode(&self, data: &str) -> String {
        data.chars().rev().collect()
    }

    fn decode(&self, stored: &str) -> Option<String> {
        Some(stored.chars().rev().collect())
    }
}

#[test]
fn a_codec_of_one_s_own_changes_the_data_only() {
    let server = FakeServer::start(vec![
        Step::Say(r#"{"Status":"Done","ID":"A"}"#),
        Step::Say(r#"{"Status":"Done","ID":"A","DataStore":"cba"}"#),
    ]);
    let locker = server.builder().codec(Reversed).build();
    assert!(matches!(locker.put(HOUR, "abc"), PutOutcome::Done));
    assert!(matches!(locker.get(), GetOutcome::Done(data) if data == "abc"));
    let put = Operation::Put {
        ttl_ms: 3_600_000,
        data_store: "cba".into(),
    };
    assert_eq!(server.operations(), [put, Operation::Get]);
}

#[test]
fn every_answer_about_data_is_an_outcome() {
    let server = FakeServer::start(vec![
        NOT_OWNER,
        Step::Say(r#"{"Status":"NO"}"#),
        Step::Say(r#"{"Status":"NoData","ID":"A"}"#),
        Step::Say(r#"{"Status":"NotFound"}"#),
        NOT_OWNER,
        Step::Say(r#"{"Status":"Corruption"}"#),
        Step::Say(r#"{"Status":"Done","ID":"A"}"#),
        Step::Say(r#"{"Status":"NotFound"}"#),
        NOT_OWNER,
        Step::Say(r#"{"Status":"Corruption"}"#),
    ]);
    let locker = server.locker(0);
    assert!(matches!(locker.put(HOUR, "x"), PutOutcome::NotOwner));
    assert!(matches!(
        locker.put(HOUR, "x"),
        PutOutcome::Failed(Failure::Answered(Status::No))
    ));
    assert!(matches!(locker.get(), GetOutcome::NoData));
    assert!(matches!(locker.get(), GetOutcome::NotFound));
    assert!(matches!(locker.get(), GetOutcome::NotOwner));
    assert!(matches!(
        locker.get(),
        GetOutcome::Failed(Failure::Answered(Status::Corruption))
    ));
    assert!(matches!(locker.erase(), EraseOutcome::Done));
    assert!(matches!(locker.erase(), EraseOutcome::NotFound));
    assert!(matches!(locker.erase(), EraseOutcome::NotOwner));
    assert!(matches!(
        locker.erase(),
        EraseOutcome::Failed(Failure::Answered(Status::Corruption))
    ));
    server.finish();
}

#[test]
fn a_version_tells_whether_it_is_such_a_server() {
    let server = FakeServer::start(vec![
        Step::Say(r#"{"Status":"Version","ID":"JackrabbitDLM/0.0.0.2.830"}"#),
        Step::Say(r#"{"Status":"Version","ID":"JackrabbitDLM/0.0.0.2.830"}"#),
        Step::Say(r#"{"Status":"Version","ID":"SomethingElse/1"}"#),
        Step::Say(r#"{"Status":"Version"}"#),
        NOTHING,
    ]);
    let locker = server.locker(0);
    assert_eq!(
        locker.version().expect("a version"),
        "JackrabbitDLM/0.0.0.2.830"
    );
    assert!(locker.is_dlm());
    assert!(!locker.is_dlm());
    assert!(matches!(locker.version(), Err(Failure::BadReply(_))));
    assert!(!locker.is_dlm());
    assert_eq!(server.operations(), vec![Operation::Version; 5]);
}

#[test]
fn an_identity_comes_with_every_request() {
    let server = FakeServer::start(vec![LOCKED, UNLOCKED]);
    let locker = server.builder().identity("worker", "secret").build();
    assert!(matches!(locker.lock(HOUR), LockOutcome::Locked { .. }));
    assert!(matches!(locker.unlock(), UnlockOutcome::Unlocked));
    for asked in server.finish() {
        assert_eq!(asked.claim, Some(("worker".into(), "secret".into())));
    }
}

#[test]
fn a_guard_unlocks_once_and_only_what_is_still_its_own() {
    let server = FakeServer::start(vec![LOCKED, LOCKED, UNLOCKED, LOCKED, UNLOCKED]);
    let locker = server.locker(0);
    let mut guard = locker.guard(HOUR).expect("locked");
    let first = guard.until();
    assert!(guard.is_valid());
    assert!(matches!(guard.renew(2 * HOUR), LockOutcome::Locked { until } if until > first));
    assert!(guard.until() > first);
    drop(guard);
    let guard = locker.guard(HOUR).expect("locked");
    assert!(matches!(guard.unlock(), UnlockOutcome::Unlocked));
    assert_eq!(server.finish().len(), 5);

    // Nothing is sent for what is over: the next request is the one after it.
    let server = FakeServer::start(vec![LOCKED, NOT_OWNER]);
    let locker = server.locker(0);
    let mut guard = locker.guard(HOUR).expect("locked");
    guard.until = clock::now();
    assert!(!guard.is_valid());
    drop(guard);
    assert!(matches!(locker.test_lock(), TestOutcome::NotOwner));
    let lock = Operation::Lock { ttl_ms: 3_600_000 };
    assert_eq!(server.operations(), [lock, Operation::TestLock]);
}

#[test]
fn without_the_lock_there_is_no_guard() {
    let server = FakeServer::start(vec![NOT_OWNER, NOTHING]);
    let locker = server.locker(0);
    assert!(matches!(locker.guard(HOUR), Err(NotLocked::NotOwner)));
    assert!(matches!(
        locker.guard(HOUR),
        Err(NotLocked::Failed(Failure::NoAnswer(_)))
    ));
    server.finish();
}

#[test]
fn an_attempt_ends_at_its_timeout_whatever_comes_in() {
    let server = FakeServer::start(vec![Step::Endless]);
    let locker = server.builder().timeout(Duration::from_millis(30)).build();
    let outcome = locker.try_lock(HOUR);
    let LockOutcome::Failed(Failure::NoAnswer(error)) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    server.finish();
}

#[test]
fn no_server_no_lock() {
    // Bound and not listening: nobody else can be reached there.
    let socket =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    let any_port: std::net::SocketAddr = ([127, 0, 0, 1], 0).into();
    socket.bind(&any_port.into()).expect("a free port");
    let address = socket
        .local_addr()
        .expect("bound")
        .as_socket()
        .expect("TCP");
    let locker = Locker::builder("k")
        .port(address.port())
        .retry(2)
        .retry_sleep(Duration::ZERO)
        .build();
    let outcome = locker.lock(HOUR);
    assert!(
        matches!(outcome, LockOutcome::Failed(Failure::Unreachable { .. })),
        "{outcome:?}"
    );
}

/// The server answers, shuts its side down and drops the rest, as it does with a
/// request that it knows to be refused.
#[test]
fn an_answer_that_comes_while_the_request_is_still_sent_is_read() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream
            .read_exact(&mut [0; 64])
            .expect("the request's start");
        say(&mut stream, r#"{"Status":"BadPayload"}"#);
        stream
            .shutdown(std::net::Shutdown::Write)
            .expect("shut down");
        let dropped = io::copy(&mut stream, &mut io::sink()).unwrap_or(0);
        drop(stream);
        dropped
    });
    let locker = Locker::builder("k")
        .port(port)
        .retry(0)
        .codec(Reversed)
        .build();
    let outcome = locker.put(HOUR, &"x".repeat(4 * 1024 * 1024));
    assert!(
        matches!(
            outcome,
            PutOutcome::Failed(Failure::Answered(Status::BadPayload))
        ),
        "{outcome:?}"
    );
    thread.join().expect("the server went as written");
}

#[test]
fn many_threads_may_use_one_locker() {
    const THREADS: usize = 8;
    let server = FakeServer::start((0..2 * THREADS).map(|_| LOCKED).collect());
    let locker = server.locker(0);
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                barrier.wait();
                for _ in 0..2 {
                    assert!(matches!(locker.lock(HOUR), LockOutcome::Locked { .. }));
                }
            });
        }
    });
    let asked = server.finish();
    assert!(
        asked
            .iter()
            .all(|asked| asked.id == "A" && asked.file_name == "k")
    );
}

#[test]
fn generated_ids_differ_and_are_printable() {
    let (one, other) = (Locker::new("k"), Locker::new("k"));
    assert_ne!(one.id(), other.id());
    assert_eq!(one.id().len(), 64);
    assert!(one.id().bytes().all(|byte| byte.is_ascii_graphic()));
}

#[test]
fn hosts_of_every_form_become_addresses() {
    for (host, server) in [
        ("127.0.0.1", "127.0.0.1:37373"),
        ("locks.example", "locks.example:37373"),
        ("::1", "[::1]:37373"),
        ("[::1]", "[::1]:37373"),
    ] {
        let locker = Locker::builder("k").id("A").host(host).build();
        assert_eq!(locker.server, ServerAddress::Tcp(server.into()));
    }
}

#[test]
fn times_are_rounded_up_to_the_millisecond() {
    for (duration, ms) in [
        (Duration::ZERO, 0),
        (Duration::from_nanos(1), 1),
        (Duration::from_millis(1), 1),
        (Duration::from_micros(1_001), 2),
        (Duration::MAX, u64::MAX),
    ] {
        assert_eq!(whole_ms(duration), ms);
    }
}
