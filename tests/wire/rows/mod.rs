//! The wire table: each row a server, what is sent to it, and what must come back.

mod closing;
mod errors;
mod framing;
mod hello;
mod matrix;
mod rules;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::configuration::in_every_configuration;
use crate::common::server::Server;
use matrix::Cell;

/// One row of the table.
pub struct Row {
    name: &'static str,
    cells: &'static [Cell],
    flags: &'static [&'static str],
    script: fn(&Server),
}

/// A row on a server with default flags.
fn row(name: &'static str, script: fn(&Server)) -> Row {
    Row {
        name,
        cells: &[],
        flags: &[],
        script,
    }
}

impl Row {
    /// The cells of the request × key-state matrix that the row is about.
    fn covers(self, cells: &'static [Cell]) -> Row {
        Row { cells, ..self }
    }

    /// The server's flags.
    fn flags(self, flags: &'static [&'static str]) -> Row {
        Row { flags, ..self }
    }
}

fn table() -> Vec<Row> {
    [
        matrix::rows(),
        rules::rows(),
        errors::rows(),
        hello::rows(),
        closing::rows(),
        framing::rows(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn every_row_is_answered_as_written() {
    in_every_configuration(|configuration| {
        let table = table();
        let failed: Vec<&str> = table
            .iter()
            .filter(|row| {
                let run = || (row.script)(&Server::start(configuration, row.flags));
                let failed = catch_unwind(AssertUnwindSafe(run)).is_err();
                if failed {
                    eprintln!("^ in row: {}\n", row.name);
                }
                failed
            })
            .map(|row| row.name)
            .collect();
        println!("{} rows, {} failed", table.len(), failed.len());
        assert!(failed.is_empty(), "failed rows: {failed:#?}");
    });
}

#[test]
fn every_matrix_cell_has_a_row_and_every_row_its_own_name() {
    let table = table();
    let covered: HashSet<Cell> = table.iter().flat_map(|row| row.cells).copied().collect();
    let missing: Vec<Cell> = matrix::cells()
        .filter(|cell| !covered.contains(cell))
        .collect();
    assert!(missing.is_empty(), "cells without a row: {missing:?}");
    let names: HashSet<&str> = table.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), table.len(), "two rows share a name");
}
