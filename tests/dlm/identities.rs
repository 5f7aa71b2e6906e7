//! Identities: which files make one, what they allow, and that no failure to prove
//! one is told from another.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use super::exchange::{
    ask, await_answer, bare, data, erase, expect, get, lock, own, put, request, start, test_lock,
    unlock, with,
};
use crate::common::configuration::{Configuration, in_every_configuration};
use crate::common::directory::Directory;
use crate::common::server::{HANG_GUARD, Server};

/// The shortest secret that a file may hold.
fn secret(letter: char) -> String {
    letter.to_string().repeat(1023)
}

/// The request with a name and its secret.
fn claimed(request: Value, name: &str, identity: &str) -> Value {
    with(with(request, "Name", name), "Identity", identity)
}

fn write_identity(directory: &Directory, name: &str, secret: &str, rest: &str) {
    let content = format!("{{\"Identity\": {}{rest}}}", json!(secret));
    // Replaced whole, as an operator should.
    let draft = directory.file(".draft");
    fs::write(&draft, content).unwrap();
    fs::rename(draft, directory.file(&format!("{name}.cfg"))).unwrap();
}

fn start_with(configuration: Configuration, directory: &Directory, flags: &[&str]) -> Server {
    let flags = [&["--dlm-config-dir", directory.path()], flags].concat();
    start(configuration, &flags)
}

#[test]
fn an_identity_exceeds_the_anonymous_limits() {
    const DAY: &str = "86400";
    let sizes = [
        ("plain", "", 16 * 1024),
        ("large", ", \"MaxSize\": 100000", 100_000),
        ("small", ", \"MaxSize\": 10", 10),
        ("text", ", \"MaxSize\": \"100000\"", 16 * 1024),
        ("none", ", \"MaxSize\": null", 16 * 1024),
        ("more", ", \"other\": [1, {}]", 16 * 1024),
    ];
    in_every_configuration(|configuration| {
        let directory = Directory::new("sizes");
        let server = start_with(configuration, &directory, &[]);
        for (name, rest, max_size) in sizes {
            write_identity(&directory, name, &secret('s'), rest);
            let claimed = |request| claimed(request, name, &secret('s'));
            for letter in ["x", "é"] {
                let content = letter.repeat(max_size);
                let file = format!("{name} {letter}");
                let stored = claimed(put("A", &file, DAY, &content));
                expect(&server, &stored, &own("Done", "A"));
                expect(&server, &claimed(get("A", &file)), &data("A", &content));
                let over = claimed(put("A", &file, DAY, &(content + "x")));
                expect(&server, &over, &bare("BadPayload"));
                expect(&server, &claimed(erase("A", &file)), &own("Done", "A"));
            }
            expect(
                &server,
                &claimed(lock("A", name, "2592000")),
                &own("Locked", "A"),
            );
            let over = claimed(lock("A", name, "2592000.001"));
            expect(&server, &over, &bare("BadPayload"));
            expect(&server, &claimed(unlock("A", name)), &own("Unlocked", "A"));
        }
    });
}

/// The longest value that fits into a request comes back, though it is longer than
/// any session of the native protocol may be owed.
#[test]
fn megabytes_of_data_come_back() {
    in_every_configuration(|configuration| {
        let directory = Directory::new("megabytes");
        write_identity(&directory, "n", &secret('s'), ", \"MaxSize\": 1e7");
        let server = start_with(configuration, &directory, &[]);
        let claimed = |request| claimed(request, "n", &secret('s'));
        let content = "0123456789 \n\"é\\".repeat(4_000_000 / 16);
        let stored = claimed(put("A", "k", "30", &content));
        expect(&server, &stored, &own("Done", "A"));
        let found = ask(&server, &claimed(get("A", "k")));
        assert!(found == data("A", &content), "something else came back");
    });
}

#[test]
fn every_failure_is_the_same_refusal() {
    in_every_configuration(|configuration| {
        let directory = Directory::new("failures");
        let server = start_with(configuration, &directory, &[]);
        let good = secret('s');
        let file = |name: &str| directory.file(&format!("{name}.cfg"));
        write_identity(&directory, "good", &good, "");
        write_identity(&directory, ".hidden", &good, "");
        write_identity(&directory, "short", &good[1..], "");
        for (name, content) in [
            ("empty", String::new()),
            ("no-json", good.clone()),
            ("cut", format!("{{\"Identity\": \"{good}")),
            ("list", format!("[{{\"Identity\": \"{good}\"}}]")),
            ("more", format!("{{\"Identity\": \"{good}\"}} x")),
            ("missing-member", format!("{{\"identity\": \"{good}\"}}")),
            ("number", format!("{{\"Identity\": {}}}", "1".repeat(1023))),
            ("null", "{\"Identity\": null}".into()),
            (
                "long",
                format!("{{\"Identity\": \"{good}\"{}}}", " ".repeat(1 << 20)),
            ),
        ] {
            fs::write(file(name), content).unwrap();
        }
        fs::write(
            file("not-utf-8"),
            [b"{\"Identity\": \"", &[0xff; 2000][..], b"\"}"].concat(),
        )
        .unwrap();
        fs::create_dir(file("directory")).unwrap();
        mknodat(CWD, file("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        symlink("/dev/zero", file("device")).unwrap();
        symlink("nowhere", file("dangling")).unwrap();
        symlink("loop.cfg", file("loop")).unwrap();
        let nested = format!("{}/nested", directory.path());
        fs::create_dir(&nested).unwrap();
        fs::copy(file("good"), format!("{nested}/good.cfg")).unwrap();

        let expect_refused = |name: &str, identity: &str| {
            for ask in [
                lock("A", "k", "30"),
                get("A", "k"),
                request("Frob", "A", "k", "30"),
            ] {
                let request = claimed(ask, name, identity);
                expect(&server, &request, &bare("BadPayload"));
            }
        };
        for name in [
            "short",
            "empty",
            "no-json",
            "cut",
            "list",
            "more",
            "missing-member",
            "number",
            "null",
            "long",
            "not-utf-8",
            "directory",
            "fifo",
            "device",
            "dangling",
            "loop",
            "missing",
            // No plain file names, whatever lies there.
            "",
            ".",
            "..",
            ".hidden",
            "nested/good",
            "nested/../good",
            "./good",
            "/good",
            "good/",
            "good\0",
            "\0",
            "good.cfg\0x",
            &"n".repeat(252),
            &"n".repeat(5000),
        ] {
            expect_refused(name, &good);
        }
        for identity in ["", "s", &good[1..], &(good.clone() + "s"), &secret('t')] {
            expect_refused("good", identity);
        }
        expect_refused("Good", &good);
        expect_refused("good.cfg", &good);
        for half in [
            with(lock("A", "k", "30"), "Name", "good"),
            with(lock("A", "k", "30"), "Identity", good.as_str()),
            with(
                claimed(lock("A", "k", "30"), "good", &good),
                "Name",
                Value::Null,
            ),
            with(
                claimed(lock("A", "k", "30"), "good", &good),
                "Identity",
                Value::Null,
            ),
        ] {
            expect(&server, &half, &bare("BadPayload"));
        }
        // None of it is remembered against the good one, or done.
        expect(&server, &test_lock("A", "k"), &bare("Unlocked"));
        let locked = claimed(lock("A", "k", "30"), "good", &good);
        expect(&server, &locked, &own("Locked", "A"));
    });
}

#[test]
fn a_link_to_a_file_and_any_plain_name_do() {
    in_every_configuration(|configuration| {
        let directory = Directory::new("names");
        let server = start_with(configuration, &directory, &[]);
        write_identity(&directory, "target", &secret('s'), "");
        symlink("target.cfg", directory.file("link.cfg")).unwrap();
        let longest = "n".repeat(251);
        let names = [
            "link",
            "with space",
            "a..b",
            "a\\b",
            "日本語",
            "new\nline",
            &longest,
        ];
        for name in names {
            if name != "link" {
                write_identity(&directory, name, &secret('s'), "");
            }
            let locked = claimed(lock(name, name, "30"), name, &secret('s'));
            expect(&server, &locked, &own("Locked", name));
        }
    });
}

/// Asks until every loop knows of a change. Each learns of it for itself and within a
/// second, and the kernel chooses which is asked.
fn settle(server: &Server, request: &Value, wanted: &Value) {
    await_answer(server, request, wanted);
    if server.loops() == 1 {
        return;
    }
    let guard = Instant::now() + HANG_GUARD;
    let mut wanted_since = Instant::now();
    while wanted_since.elapsed() < Duration::from_secs(1) {
        if ask(server, request) != *wanted {
            wanted_since = Instant::now();
        }
        assert!(Instant::now() < guard, "{request} is answered by halves");
    }
}

#[test]
fn changed_and_removed_files_take_effect() {
    in_every_configuration(|configuration| {
        let directory = Directory::new("changes");
        let server = start_with(configuration, &directory, &[]);
        let lock_with = |secret: &str| claimed(lock("A", "k", "30"), "n", secret);
        let (old, new) = (secret('o'), secret('n'));
        let (locked, refused) = (own("Locked", "A"), bare("BadPayload"));

        expect(&server, &lock_with(&old), &refused);
        write_identity(&directory, "n", &old, "");
        settle(&server, &lock_with(&old), &locked);
        write_identity(&directory, "n", &new, ", \"MaxSize\": 3");
        settle(&server, &lock_with(&new), &locked);
        expect(&server, &lock_with(&old), &refused);
        // The name is the holder; its secret may change meanwhile.
        let too_long = claimed(put("A", "k", "30", "1234"), "n", &new);
        expect(&server, &too_long, &refused);
        let fits = claimed(put("A", "k", "30", "123"), "n", &new);
        expect(&server, &fits, &own("Done", "A"));
        fs::remove_file(directory.file("n.cfg")).unwrap();
        settle(&server, &lock_with(&new), &refused);
        expect(&server, &lock_with(&old), &refused);
        // What it holds runs on to its end.
        expect(&server, &test_lock("A", "k"), &bare("NotOwner"));
    });
}

#[test]
fn a_slot_taken_with_a_name_is_another_s_without_it_and_the_other_way_round() {
    in_every_configuration(|configuration| {
        let directory = Directory::new("holders");
        let server = start_with(configuration, &directory, &[]);
        for name in ["n", "m"] {
            write_identity(&directory, name, &secret('s'), "");
        }
        let nobody = |request: Value| request;
        let as_n = |request| claimed(request, "n", &secret('s'));
        let as_m = |request| claimed(request, "m", &secret('s'));
        type Asker<'a> = &'a dyn Fn(Value) -> Value;
        let askers: [Asker<'_>; 3] = [&nobody, &as_n, &as_m];
        for (holder, file) in askers.iter().zip(["0", "1", "2"]) {
            expect(
                &server,
                &holder(lock("A", file, "300")),
                &own("Locked", "A"),
            );
            expect(
                &server,
                &holder(put("A", file, "300", "x")),
                &own("Done", "A"),
            );
            for other in askers.iter().filter(|it| !std::ptr::addr_eq(**it, *holder)) {
                for request in [
                    lock("A", file, "300"),
                    unlock("A", file),
                    test_lock("A", file),
                    put("A", file, "300", "y"),
                    get("A", file),
                    erase("A", file),
                ] {
                    expect(&server, &other(request), &bare("NotOwner"));
                }
            }
            expect(&server, &holder(test_lock("A", file)), &own("Locked", "A"));
            expect(&server, &holder(get("A", file)), &data("A", "x"));
            expect(&server, &holder(unlock("A", file)), &own("Unlocked", "A"));
        }
    });
}

/// Two channels of one ID, one of them with a name: neither lengthens nor clears
/// what the other has.
#[test]
fn the_rules_for_one_id_are_for_one_identity_too() {
    in_every_configuration(|configuration| {
        let directory = Directory::new("channels");
        let server = start_with(configuration, &directory, &[]);
        write_identity(&directory, "n", &secret('s'), "");
        let as_n = |request| claimed(request, "n", &secret('s'));
        expect(&server, &lock("A", "k", "100"), &own("Locked", "A"));
        expect(&server, &as_n(get("A", "k")), &bare("NotFound"));
        expect(&server, &as_n(put("A", "k", "300", "x")), &own("Done", "A"));
        assert!(server.connect().state("k").remaining_ms <= 100_000);
        expect(&server, &unlock("A", "k"), &own("Unlocked", "A"));
        expect(&server, &as_n(get("A", "k")), &data("A", "x"));
    });
}

#[test]
fn with_credentials_anonymous_requests_need_their_flag() {
    in_every_configuration(|configuration| {
        let directory = Directory::new("credentials");
        write_identity(&directory, "n", &secret('s'), "");
        let credentials = directory.file("credentials");
        // printf secret | sha256sum
        let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        fs::write(&credentials, format!("joe {hash}\n")).unwrap();
        let flags = ["--credentials-file", &credentials];

        let server = start_with(configuration, &directory, &flags);
        for request in [
            lock("A", "k", "30"),
            unlock("A", "k"),
            test_lock("A", "k"),
            put("A", "k", "30", "x"),
            get("A", "k"),
            erase("A", "k"),
            request("Version", "A", "k", "0"),
            request("Frob", "A", "k", "0"),
        ] {
            expect(&server, &request, &bare("BadPayload"));
        }
        let as_n = claimed(lock("A", "k", "30"), "n", &secret('s'));
        expect(&server, &as_n, &own("Locked", "A"));

        let flags = [&flags[..], &["--dlm-anonymous"]].concat();
        let server = start_with(configuration, &directory, &flags);
        expect(&server, &lock("A", "k", "30"), &own("Locked", "A"));
        expect(&server, &as_n, &bare("NotOwner"));
    });
}

/// Many names at a time, known and unknown ones: each is judged by its own file.
#[test]
fn many_identities_at_a_time_are_told_apart() {
    in_every_configuration(|configuration| {
        let directory = Directory::new("many");
        let letters: Vec<char> = ('a'..='p').collect();
        for letter in &letters {
            write_identity(&directory, &letter.to_string(), &secret(*letter), "");
        }
        let server = start_with(configuration, &directory, &[]);
        std::thread::scope(|scope| {
            for letter in &letters {
                let server = &server;
                scope.spawn(move || {
                    let name = letter.to_string();
                    for round in 0..10 {
                        let file = format!("{name}{round}");
                        let good = claimed(lock("A", &file, "30"), &name, &secret(*letter));
                        expect(server, &good, &own("Locked", "A"));
                        let bad = claimed(lock("A", &file, "30"), &name, &secret('z'));
                        expect(server, &bad, &bare("BadPayload"));
                        let unknown = format!("{name}-{round}");
                        let bad = claimed(lock("A", &file, "30"), &unknown, &secret(*letter));
                        expect(server, &bad, &bare("BadPayload"));
                    }
                });
            }
        });
    });
}
