//! What each action does to a name's two slots: the table of actions and states,
//! row by row, and the rules for one ID that uses both slots.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::exchange::{
    ask, await_answer, bare, data, erase, expect, get, lock, own, put, request, start, test_lock,
    unlock, with,
};
use crate::common::configuration::in_every_configuration;
use crate::common::server::Server;

/// A slot as the asker, A, finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Empty,
    OwnExpired,
    OtherExpired,
    Own,
    Other,
}

use State::{Empty, Other, OtherExpired, Own, OwnExpired};

/// "Slot empty or expired".
const VACANT: &[State] = &[Empty, OwnExpired, OtherExpired];
const STATES: usize = 5;
/// What the other slot may be meanwhile.
const BESIDE: [State; 3] = [Empty, Own, Other];

/// The action, the states its slot may be in, the answer, and the slot after it.
type Row = (Value, &'static [State], Value, State);

fn bring_lock(server: &Server, name: &str, state: State) {
    let (id, ttl, answer) = match state {
        Empty => return,
        OwnExpired => ("A", "0.001", bare("Unlocked")),
        OtherExpired => ("B", "0.001", bare("Unlocked")),
        Own => ("A", "300", own("Locked", "A")),
        Other => ("B", "300", bare("NotOwner")),
    };
    expect(server, &lock(id, name, ttl), &own("Locked", id));
    await_answer(server, &test_lock("A", name), &answer);
}

fn bring_data(server: &Server, name: &str, state: State) {
    let (id, ttl) = match state {
        Empty => return,
        OwnExpired => ("A", "0.001"),
        OtherExpired => ("B", "0.001"),
        Own => ("A", "300"),
        Other => ("B", "300"),
    };
    expect(server, &put(id, name, ttl, "old"), &own("Done", id));
    if ttl == "0.001" {
        // Nobody's: neither A nor B has any lock of that name yet.
        await_answer(server, &get("A", name), &bare("NotFound"));
    }
}

#[track_caller]
fn assert_lock(server: &Server, name: &str, state: State) {
    let (to_a, to_b) = match state {
        Own => (own("Locked", "A"), bare("NotOwner")),
        Other => (bare("NotOwner"), own("Locked", "B")),
        _ => (bare("Unlocked"), bare("Unlocked")),
    };
    expect(server, &test_lock("A", name), &to_a);
    expect(server, &test_lock("B", name), &to_b);
}

#[track_caller]
fn assert_data(server: &Server, name: &str, state: State, content: &str, lock: State) {
    let nothing = |holder: State, id| match holder == lock {
        true => own("NoData", id),
        false => bare("NotFound"),
    };
    let (to_a, to_b) = match state {
        Own => (data("A", content), bare("NotOwner")),
        Other => (bare("NotOwner"), data("B", content)),
        _ => (nothing(Own, "A"), nothing(Other, "B")),
    };
    expect(server, &get("A", name), &to_a);
    expect(server, &get("B", name), &to_b);
}

/// How long the lock of that name lasts, as a native client is told.
#[track_caller]
fn lock_remaining_ms(server: &Server, name: &str) -> u32 {
    let state = server.connect().state(name);
    assert!(state.held, "{name} is not locked");
    state.remaining_ms
}

#[test]
fn every_row_of_the_lock_slot_s_table() {
    let rows: [Row; 9] = [
        (lock("A", "", "30"), VACANT, own("Locked", "A"), Own),
        (lock("A", "", "30"), &[Own], own("Locked", "A"), Own),
        (lock("A", "", "30"), &[Other], bare("NotOwner"), Other),
        (unlock("A", ""), VACANT, bare("Unlocked"), Empty),
        (unlock("A", ""), &[Own], own("Unlocked", "A"), Empty),
        (unlock("A", ""), &[Other], bare("NotOwner"), Other),
        (test_lock("A", ""), VACANT, bare("Unlocked"), Empty),
        (test_lock("A", ""), &[Own], own("Locked", "A"), Own),
        (test_lock("A", ""), &[Other], bare("NotOwner"), Other),
    ];
    assert_every_cell(&rows);
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        for (index, (request, states, answer, after)) in rows.iter().enumerate() {
            for (&state, beside) in cells(states) {
                let name = format!("{index}, {state:?}, data {beside:?}");
                bring_data(&server, &name, beside);
                bring_lock(&server, &name, state);
                let request = with(request.clone(), "FileName", name.as_str());
                assert_eq!(ask(&server, &request), *answer, "{request}");
                assert_lock(&server, &name, *after);
                // An unlock by the ID that has both clears both.
                let clears = request["Action"] == "Unlock" && state == Own && beside == Own;
                let data_after = if clears { Empty } else { beside };
                assert_data(&server, &name, data_after, "old", *after);
            }
        }
    });
}

#[test]
fn every_row_of_the_data_slot_s_table() {
    let new = |expire| put("A", "", expire, "new");
    let rows: [Row; 9] = [
        (new("30"), VACANT, own("Done", "A"), Own),
        (new("30"), &[Own], own("Done", "A"), Own),
        (new("30"), &[Other], bare("NotOwner"), Other),
        (get("A", ""), VACANT, bare("NotFound"), Empty),
        (get("A", ""), &[Own], data("A", "old"), Own),
        (get("A", ""), &[Other], bare("NotOwner"), Other),
        (erase("A", ""), VACANT, bare("NotFound"), Empty),
        (erase("A", ""), &[Own], own("Done", "A"), Empty),
        (erase("A", ""), &[Other], bare("NotOwner"), Other),
    ];
    assert_every_cell(&rows);
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        for (index, (request, states, answer, after)) in rows.iter().enumerate() {
            for (&state, beside) in cells(states) {
                let name = format!("{index}, {state:?}, lock {beside:?}");
                bring_data(&server, &name, state);
                bring_lock(&server, &name, beside);
                let request = with(request.clone(), "FileName", name.as_str());
                // Get tells the lock's holder that it has no data.
                let holds_only_a_lock =
                    request["Action"] == "Get" && *answer == bare("NotFound") && beside == Own;
                let answer = match holds_only_a_lock {
                    true => own("NoData", "A"),
                    false => answer.clone(),
                };
                assert_eq!(ask(&server, &request), answer, "{request}");
                let is_stored = request["Action"] == "Put" && *after == Own;
                let content = if is_stored { "new" } else { "old" };
                assert_data(&server, &name, *after, content, beside);
                assert_lock(&server, &name, beside);
            }
        }
    });
}

/// Each state of the asked slot with each of the other one.
fn cells(states: &[State]) -> impl Iterator<Item = (&State, State)> {
    let with_all = |state| BESIDE.into_iter().map(move |beside| (state, beside));
    states.iter().flat_map(with_all)
}

fn assert_every_cell(rows: &[Row]) {
    let covered: usize = rows.iter().map(|(_, states, ..)| states.len()).sum();
    assert_eq!(covered, 3 * STATES);
}

#[test]
fn version_needs_no_slot_and_changes_none() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        bring_lock(&server, "k", Other);
        bring_data(&server, "k", Other);
        let answer = ask(&server, &request("Version", "A", "k", "0"));
        assert_eq!(answer["Status"], "Version");
        let id = answer["ID"].as_str().unwrap();
        let (theirs, ours) = id.split_once(' ').unwrap();
        assert_eq!(theirs, "JackrabbitDLM/0.0.0.2.855");
        assert_eq!(ours, concat!("leasehold/", env!("CARGO_PKG_VERSION")));
        assert_lock(&server, "k", Other);
        assert_data(&server, "k", Other, "old", Other);
    });
}

#[test]
fn a_relock_lengthens_a_lock_and_never_shortens_it() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        expect(&server, &lock("A", "k", "100"), &own("Locked", "A"));
        expect(&server, &lock("A", "k", "300"), &own("Locked", "A"));
        assert!(lock_remaining_ms(&server, "k") > 200_000);
        expect(&server, &lock("A", "k", "0.001"), &own("Locked", "A"));
        assert!(lock_remaining_ms(&server, "k") > 200_000);
    });
}

#[test]
fn a_put_by_the_lock_s_holder_lengthens_the_lock_and_never_shortens_it() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        expect(&server, &lock("A", "k", "100"), &own("Locked", "A"));
        expect(&server, &put("B", "k", "600", "x"), &own("Done", "B"));
        assert!(lock_remaining_ms(&server, "k") <= 100_000, "B is another");
        expect(&server, &erase("B", "k"), &own("Done", "B"));
        expect(&server, &put("A", "k", "300", "x"), &own("Done", "A"));
        assert!(lock_remaining_ms(&server, "k") > 200_000);
        expect(&server, &put("A", "k", "0.001", "x"), &own("Done", "A"));
        assert!(lock_remaining_ms(&server, "k") > 200_000);
    });
}

#[test]
fn data_ends_with_the_expire_of_the_last_put_whatever_the_lock_does() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        expect(&server, &put("A", "k", "300", "x"), &own("Done", "A"));
        // The lock's end is not the data's.
        expect(&server, &lock("A", "k", "0.001"), &own("Locked", "A"));
        await_answer(&server, &test_lock("A", "k"), &bare("Unlocked"));
        expect(&server, &get("A", "k"), &data("A", "x"));
        // A Put sets the data's end, sooner ones included.
        expect(&server, &put("A", "k", "0.001", "y"), &own("Done", "A"));
        await_answer(&server, &get("A", "k"), &bare("NotFound"));
        // What one had, another can have now.
        expect(&server, &put("B", "k", "300", "z"), &own("Done", "B"));
        expect(&server, &get("A", "k"), &bare("NotOwner"));
    });
}

#[test]
fn nothing_ends_before_its_time() {
    const TTL: Duration = Duration::from_millis(300);
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let before = Instant::now();
        expect(&server, &lock("A", "k", "0.3"), &own("Locked", "A"));
        await_answer(&server, &lock("B", "k", "30"), &own("Locked", "B"));
        assert!(before.elapsed() >= TTL);
        let before = Instant::now();
        expect(&server, &put("A", "l", "0.3", "x"), &own("Done", "A"));
        await_answer(&server, &put("B", "l", "30", "x"), &own("Done", "B"));
        assert!(before.elapsed() >= TTL);
    });
}

#[test]
fn what_is_stored_comes_back_unchanged() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let every_low_character: String = ('\0'..='\u{ff}').collect();
        for content in [
            "",
            "step 2 complete",
            "\"\\/\u{8}\u{c}\n\r\t",
            &every_low_character,
            "日本語 🦀 \u{10ffff}\u{feff}",
        ] {
            expect(&server, &put("A", "k", "30", content), &own("Done", "A"));
            expect(&server, &get("A", "k"), &data("A", content));
        }
        // IDs come back as they are too, and names are told apart by every byte.
        let id = "\"Ä\\\n\0";
        expect(&server, &lock(id, "n\0\n1", "30"), &own("Locked", id));
        expect(&server, &lock("B", "n\0\n", "30"), &own("Locked", "B"));
        expect(&server, &lock("B", "n\0\n1", "30"), &bare("NotOwner"));
        expect(&server, &unlock(id, "n\0\n1"), &own("Unlocked", id));
    });
}
