//! docs/testing.md says of each scenario which tests hold the server to it: those tests
//! exist, and whoever bears a scenario's number in its name is listed there.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, assert_none, repository_files};

/// Faults that are known from the field.
const SCENARIOS: usize = 57;

/// A row of the table.
struct Row {
    tests: BTreeSet<String>,
    is_complete: bool,
}

fn rows(document: &str) -> BTreeMap<usize, Row> {
    let (_, section) = document
        .split_once("\n## Scenarios\n")
        .expect("its section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut rows = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Ok(number) = cells[1].parse() else {
            continue;
        };
        let row = Row {
            tests: quoted(cells[3]),
            is_complete: cells[4].is_empty(),
        };
        assert!(rows.insert(number, row).is_none(), "{number} twice");
    }
    rows
}

/// What stands between backquotes.
fn quoted(text: &str) -> BTreeSet<String> {
    let parts = text.split('`').skip(1).step_by(2);
    parts.map(str::to_owned).collect()
}

/// Names of all functions of the repository that may be tests.
fn functions(files: &[File]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in files.iter().flat_map(|file| file.text.lines()) {
        let line = line.trim_start();
        let rest = line
            .strip_prefix("fn ")
            .or_else(|| line.strip_prefix("def "));
        if let Some((name, _)) = rest.and_then(|rest| rest.split_once('(')) {
            names.insert(name.to_owned());
        }
    }
    names
}

/// The scenarios that a test's name tells: `s28_s46_…`, `scenario_44_…`.
fn numbers(name: &str) -> Vec<usize> {
    let mut words = name.split('_').peekable();
    if words.next_if_eq(&"scenario").is_some() {
        return words
            .next()
            .and_then(|word| word.parse().ok())
            .into_iter()
            .collect();
    }
    let number = |word: &str| {
        let digits = word.strip_prefix('s').filter(|digits| digits.len() == 2)?;
        digits.parse().ok()
    };
    words.map_while(number).collect()
}

#[test]
fn every_scenario_is_listed_with_tests_that_exist() {
    let files = repository_files();
    let document = include_str!("../../docs/testing.md");
    let rows = rows(document);
    let listed: Vec<usize> = rows.keys().copied().collect();
    assert_eq!(listed, (1..=SCENARIOS).collect::<Vec<_>>());
    let functions = functions(&files);
    let mut faults = Vec::new();
    for (number, row) in &rows {
        if row.is_complete && row.tests.is_empty() {
            faults.push(format!("{number} has no test, and none is to come"));
        }
        for name in row.tests.difference(&functions) {
            faults.push(format!("{number}: there is no {name}"));
        }
    }
    for name in &functions {
        for number in numbers(name) {
            if !rows
                .get(&number)
                .is_some_and(|row| row.tests.contains(name))
            {
                faults.push(format!("{name} is not listed under {number}"));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn scenario_numbers_are_found_in_names() {
    assert_eq!(numbers("s28_s46_a_peer_that_vanishes"), [28, 46]);
    assert_eq!(numbers("scenario_05_a_lease"), [5]);
    for name in ["s_curve", "s2_x", "sent", "scenario_numbers_are_found"] {
        assert_eq!(numbers(name), [], "{name}");
    }
}
