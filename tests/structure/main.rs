//! Which module may use which, what the sans-I/O ones must not touch, and a few
//! habits, read off the source.

mod scenarios;
mod source;

use source::{Source, named_paths};
use std::path::{Path, PathBuf};

/// Whom everybody may use: they use nothing of ours but each other's numbers.
const FOUNDATIONS: [&str; 4] = ["limits", "ids", "engine::time", "stats"];

/// Module, and which of ours it may use besides itself and, unless it is one of
/// them, the foundations.
const MAY_USE: &[(&str, &[&str])] = &[
    ("limits", &[]),
    ("engine::time", &[]),
    ("stats", &[]),
    ("ids", &["limits"]),
    ("partition", &[]),
    ("durability", &[]),
    ("store", &["durability", "clock"]),
    ("protocol", &[]),
    ("dlm", &[]),
    ("engine", &["protocol", "durability"]),
    ("session", &["protocol", "dlm"]),
    ("mesh", &["protocol", "dlm"]),
    (
        "worker",
        &[
            "engine",
            "session",
            "mesh",
            "partition",
            "protocol",
            "dlm",
            "credentials",
            "durability",
        ],
    ),
    ("credentials", &[]),
    // Limits go out in the form in which protocol and engine take them.
    ("config", &["protocol", "engine"]),
    ("clock", &[]),
    (
        "driver",
        &[
            "worker",
            "session",
            "mesh",
            "durability",
            "partition",
            "store",
            "config",
            "credentials",
            "dlm",
            "clock",
        ],
    ),
    ("client", &["protocol", "dlm", "clock"]),
];

/// What reaches the kernel or the passing of time.
const IMPURE: [&str; 15] = [
    "std::net",
    "std::thread",
    "std::io",
    "std::time",
    "std::fs",
    "std::process",
    "std::env",
    "std::os",
    "mio",
    "io_uring",
    "libc",
    "rustix",
    "socket2",
    "signal_hook",
    "getrandom",
];

/// Modules that are there to do I/O.
const DOES_IO: [&str; 5] = ["driver", "client", "clock", "main", "store"];

/// What else a module needs of the impure, and why.
const MAY_TOUCH: &[(&str, &[&str])] = &[
    // Addresses are values of settings; the default of --max-memory is read from
    // the kernel once, at start.
    ("config", &["std::net", "std::fs", "rustix"]),
    // Reads one file at start, whose errors it passes on; makes random secrets.
    ("credentials", &["std::fs", "std::io", "getrandom"]),
];

/// Who asks what the wall clock shows. It may be set by hours at any moment, so no
/// lease and no wait may come to depend on it.
const MAY_READ_WALL: &[&str] = &[
    // Defines how.
    "src/clock.rs",
    // The floor of the first token: without a state directory, and with one.
    "src/driver/state.rs",
    "src/store/mod.rs",
    "src/store/start.rs",
];

/// Names by which the wall clock can be read.
const WALL_CLOCKS: &[&str] = &[
    "wall_nanos",
    "Realtime",
    "RealtimeCoarse",
    "RealtimeAlarm",
    "Tai",
    "CLOCK_REALTIME",
    "gettimeofday",
    "SystemTime",
    "UNIX_EPOCH",
];

/// Longest source file, in lines.
const MAX_LINES: usize = 900;

/// One file of the repository.
struct File {
    /// Relative to the repository.
    path: PathBuf,
    text: String,
}

fn repository_files() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|it| it.to_str()).unwrap_or("");
            let is_hidden_or_built = name.starts_with('.') || name == "target";
            if path.is_dir() && !path.is_symlink() && !is_hidden_or_built {
                directories.push(path);
            } else if path.extension().is_some_and(|it| it == "rs" || it == "py") {
                files.push(File {
                    text: std::fs::read_to_string(&path).expect("UTF-8"),
                    path: path.strip_prefix(root).expect("below the root").into(),
                });
            }
        }
    }
    files
}

fn rust_files() -> Vec<File> {
    let mut files = repository_files();
    files.retain(|file| file.path.extension().is_some_and(|it| it == "rs"));
    files
}

/// `src/engine/time.rs` is `["engine", "time"]`; `None` for what is no module of
/// the library, or belongs to its unit tests.
fn module_of(path: &Path) -> Option<Vec<&str>> {
    let below = path.strip_prefix("src").ok()?;
    let mut module: Vec<&str> = below
        .iter()
        .map(|part| part.to_str().unwrap_or(""))
        .map(|part| part.strip_suffix(".rs").unwrap_or(part))
        .collect();
    if module.contains(&"tests") {
        return None;
    }
    if module.last() == Some(&"mod") || module == ["lib"] {
        module.pop();
    }
    Some(module)
}

/// The row of the table that a module or a path in it belongs to.
fn unit_of<'a>(path: impl IntoIterator<Item = &'a str>) -> String {
    let mut segments = path.into_iter();
    match (segments.next(), segments.next()) {
        (Some("engine"), Some("time")) => "engine::time".into(),
        (first, _) => first.unwrap_or("").into(),
    }
}

/// What the file uses against the table, or of what is impure.
fn module_faults(path: &str, text: &str) -> Vec<String> {
    let Some(module) = module_of(Path::new(path)) else {
        return Vec::new();
    };
    let unit = unit_of(module.iter().copied());
    let source = Source::new(text);
    let tokens = source.without_test_modules();
    let mut faults = Vec::new();
    for named in named_paths(&module, &tokens) {
        let fault = match named[0].as_str() {
            "crate" => direction_fault(&unit, &named[1..]),
            _ => purity_fault(&unit, &named),
        };
        faults.extend(fault.map(|fault| format!("{path}: {fault}")));
    }
    faults
}

fn direction_fault(unit: &str, named: &[String]) -> Option<String> {
    // The root names every module, and the command is on top of all.
    if ["", "main"].contains(&unit) {
        return None;
    }
    let used = unit_of(named.iter().map(String::as_str));
    let Some((_, may_use)) = MAY_USE.iter().find(|(name, _)| *name == unit) else {
        return Some(format!("module {unit} has no row in MAY_USE"));
    };
    let is_foundation = FOUNDATIONS.contains(&unit);
    let allowed = used == unit
        || may_use.contains(&used.as_str())
        || (!is_foundation && FOUNDATIONS.contains(&used.as_str()));
    (!allowed).then(|| format!("{unit} must not use {}", named.join("::")))
}

fn purity_fault(unit: &str, named: &[String]) -> Option<String> {
    if DOES_IO.contains(&unit) {
        return None;
    }
    let touches = |impure: &&&str| {
        let impure: Vec<&str> = impure.split("::").collect();
        named.len() >= impure.len() && named.iter().zip(&impure).all(|(a, b)| a == b)
    };
    let touched = IMPURE.iter().find(touches)?;
    let allowed = MAY_TOUCH
        .iter()
        .any(|(name, may_touch)| *name == unit && may_touch.contains(touched));
    (!allowed).then(|| format!("{unit} does no I/O and must not use {}", named.join("::")))
}

/// Where the kernel's rings are filled: the drivers, and the ceiling they are told
/// as a share of, which uses none of their code.
const MAY_BE_UNSAFE: &[&str] = &["src/driver/", "bench/src/bin/echo/uring.rs"];

/// What the file does that no file should.
fn habit_faults(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let source = Source::new(text);
    let tokens: Vec<&str> = source.tokens.iter().map(String::as_str).collect();
    let may_be_unsafe = MAY_BE_UNSAFE.iter().any(|place| path.starts_with(place));
    if tokens.contains(&"unsafe") && !may_be_unsafe {
        faults.push("unsafe where it may not be");
    }
    for pattern in [
        &["todo", "!"][..],
        &["unimplemented", "!"],
        &["allow", "(", "dead_code"],
        &["#", "[", "ignore"],
    ] {
        if tokens
            .windows(pattern.len())
            .any(|window| window == pattern)
        {
            faults.push("unfinished, dead or ignored code");
        }
    }
    let is_unfinished = |comment: &String| comment.contains("TODO") || comment.contains("FIXME");
    if source.comments.iter().any(is_unfinished) {
        faults.push("a comment about unfinished work");
    }
    let named = faults.into_iter().map(|fault| format!("{path}: {fault}"));
    named.collect()
}

/// The wall clock, named where it may not be.
fn wall_clock_fault(path: &str, text: &str) -> Option<String> {
    if !path.starts_with("src/") || MAY_READ_WALL.contains(&path) {
        return None;
    }
    let source = Source::new(text);
    let is_wall = |token: &&String| WALL_CLOCKS.contains(&token.as_str());
    let named = source.tokens.iter().find(is_wall)?;
    Some(format!("{path}: {named} reads the wall clock"))
}

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn modules_use_only_what_they_may() {
    let files = rust_files();
    let modules: Vec<_> = files
        .iter()
        .filter(|file| module_of(&file.path).is_some())
        .collect();
    assert!(modules.len() >= 10, "the source was not found");
    let faults: Vec<_> = modules
        .iter()
        .flat_map(|file| module_faults(&file.path.to_string_lossy(), &file.text))
        .collect();
    assert_none(&faults);
}

#[test]
fn nothing_is_unsafe_or_unfinished() {
    let faults: Vec<_> = rust_files()
        .iter()
        .flat_map(|file| habit_faults(&file.path.to_string_lossy(), &file.text))
        .collect();
    assert_none(&faults);
}

/// Scenario 15: a wall clock that is set moves no lease and no wait.
#[test]
fn the_wall_clock_is_read_for_the_first_token_alone() {
    let files = rust_files();
    let read = |file: &&File| MAY_READ_WALL.contains(&&*file.path.to_string_lossy());
    assert_eq!(files.iter().filter(read).count(), MAY_READ_WALL.len());
    let faults: Vec<_> = files
        .iter()
        .filter_map(|file| wall_clock_fault(&file.path.to_string_lossy(), &file.text))
        .collect();
    assert_none(&faults);
}

#[test]
fn no_file_is_too_long_for_one_sitting() {
    let faults: Vec<_> = repository_files()
        .iter()
        .map(|file| (file.path.display(), file.text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_LINES)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert_none(&faults);
}

/// The checks themselves, on sources made up for it.
mod checks {
    use super::*;

    #[test]
    fn every_way_to_name_a_forbidden_module_is_seen() {
        for (path, text) in [
            ("src/engine/mod.rs", "use crate::session::Session;"),
            (
                "src/engine/mod.rs",
                "use crate::{protocol::Reply, session};",
            ),
            (
                "src/engine/mod.rs",
                "use crate::{protocol::{b, c}, driver::{x}};",
            ),
            (
                "src/engine/mod.rs",
                "pub(crate) use crate::session::Session as S;",
            ),
            ("src/engine/mod.rs", "fn f(s: crate::session::Session) {}"),
            (
                "src/engine/mod.rs",
                "fn f() { let x = crate::session::new(); }",
            ),
            ("src/engine/mod.rs", "use super::session::Session;"),
            ("src/engine/a/b.rs", "use super::super::super::session;"),
            (
                "src/engine/mod.rs",
                "mod inner { use super::super::session::S; }",
            ),
            (
                "src/engine/mod.rs",
                "mod inner { fn f() {} } use super::session::S;",
            ),
            ("src/engine/time.rs", "use crate::limits::MAX_LEASE_MS;"),
            ("src/engine/time.rs", "use super::Engine;"),
            ("src/protocol/mod.rs", "use crate::engine::Engine;"),
            ("src/limits.rs", "use crate::ids::SessionId;"),
            ("src/client/mod.rs", "use crate::engine::Engine;"),
            ("src/worker.rs", "use crate::driver::epoll;"),
            ("src/unheard_of.rs", "use crate::limits;"),
        ] {
            let faults = module_faults(path, text);
            assert_eq!(faults.len(), 1, "{path}: {text}: {faults:?}");
        }
    }

    #[test]
    fn every_way_to_reach_the_kernel_is_seen() {
        for (path, text) in [
            ("src/engine/mod.rs", "use std::time::Instant;"),
            ("src/engine/mod.rs", "use std::{fmt, io::{self, Write}};"),
            ("src/engine/mod.rs", "fn f() { std::thread::yield_now(); }"),
            ("src/engine/mod.rs", "fn f() -> ::std::io::Result<()> {}"),
            ("src/lib.rs", "use std::net::TcpStream;"),
            ("src/session.rs", "use mio::Poll;"),
            ("src/session.rs", "fn f() { libc::getpid(); }"),
            ("src/worker.rs", "use io_uring as ring; use std::time;"),
            ("src/config.rs", "use std::thread;"),
            ("src/credentials.rs", "use std::net::SocketAddr;"),
        ] {
            let faults = module_faults(path, text);
            assert!(!faults.is_empty(), "{path}: {text}");
        }
    }

    #[test]
    fn what_is_allowed_or_only_text_is_not_seen() {
        for (path, text) in [
            (
                "src/engine/mod.rs",
                "use crate::engine::time::Time; use super::limits;",
            ),
            (
                "src/engine/mod.rs",
                "mod a { use super::x; } use self::a::b;",
            ),
            ("src/engine/table/slab.rs", "use super::super::time::Time;"),
            (
                "src/engine/mod.rs",
                "// use crate::session;\n/* std::net /* x */ std::io */",
            ),
            ("src/engine/mod.rs", "/// See [`crate::driver`].\nfn f() {}"),
            (
                "src/engine/mod.rs",
                r##"const A: &str = "std::net::x"; const B: &str = r#"std::io::"x"#;"##,
            ),
            (
                "src/engine/mod.rs",
                r#"const Q: char = '"'; fn f<'a>(x: &'a str) {} const C: &[u8] = b"std::io::";"#,
            ),
            (
                "src/engine/mod.rs",
                "#[cfg(test)]\nmod tests { use std::io::Read; mod x { use crate::driver::y; } }",
            ),
            ("src/engine/mod.rs", "#[cfg(test)]\nmod tests;"),
            ("src/engine/tests.rs", "use std::time::Instant;"),
            ("src/engine/tests/random.rs", "use std::time::Instant;"),
            (
                "src/driver/epoll.rs",
                "use std::net::TcpStream; use crate::worker::Worker;",
            ),
            ("src/main.rs", "use std::io::Write;"),
            ("src/lib.rs", "pub mod engine; use crate::engine::Engine;"),
            ("tests/wire.rs", "use std::net::TcpStream;"),
        ] {
            assert_none(&module_faults(path, text));
        }
    }

    #[test]
    fn every_look_at_the_wall_clock_is_seen() {
        for text in [
            "fn f() { crate::clock::wall_nanos(); }",
            "use std::time::SystemTime;",
            "fn f() { clock_gettime(ClockId::Realtime); }",
        ] {
            assert!(wall_clock_fault("src/worker.rs", text).is_some(), "{text}");
            assert!(wall_clock_fault("src/clock.rs", text).is_none(), "{text}");
        }
        let text = "// SystemTime\nfn f() { crate::clock::now(); }";
        assert!(wall_clock_fault("src/worker.rs", text).is_none());
    }

    #[test]
    fn code_after_a_test_module_is_still_seen() {
        let text = "#[cfg(test)] mod tests { fn f() { if x { } } } use std::io;";
        assert_eq!(module_faults("src/engine/mod.rs", text).len(), 1);
    }

    #[test]
    fn bad_habits_are_seen_and_talk_of_them_is_not() {
        for (path, text) in [
            ("src/engine/mod.rs", "fn f() { unsafe { g() } }"),
            ("tests/wire.rs", "unsafe fn f() {}"),
            ("bench/src/load.rs", "fn f() { unsafe { g() } }"),
            ("src/engine/mod.rs", "fn f() { todo!() }"),
            ("src/engine/mod.rs", "fn f() { unimplemented!(\"x\") }"),
            ("src/engine/mod.rs", "#[allow(dead_code)] fn f() {}"),
            ("src/engine/mod.rs", "#[ignore = \"slow\"] fn f() {}"),
            ("src/engine/mod.rs", "// TODO: more"),
            ("src/engine/mod.rs", "/* FIXME */"),
        ] {
            assert_eq!(habit_faults(path, text).len(), 1, "{path}: {text}");
        }
        for (path, text) in [
            ("src/driver/uring.rs", "fn f() { unsafe { g() } }"),
            ("src/engine/mod.rs", "// nothing here is unsafe"),
            (
                "src/engine/mod.rs",
                "const A: &str = \"TODO unsafe todo!\";",
            ),
        ] {
            assert_none(&habit_faults(path, text));
        }
    }
}
