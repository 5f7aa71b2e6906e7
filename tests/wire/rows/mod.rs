//! The wire table: each row a server, what is sent to it, and what must come back.

mod closing;
mod errors;
mod framing;
mod hello;
mod matrix;
mod rules;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::configuration::{Configuration, in_every_configuration};
use crate::common::server::{Placement, Server};
use matrix::Cell;

/// One row of the table.
pub struct Row {
    name: &'static str,
    cells: &'static [Cell],
    flags: &'static [&'static str],
    /// Limits that are shared out over loops, as each loop is to have them.
    per_loop: &'static [(&'static str, u64)],
    /// Run also with all sessions on one loop, that of "k" and another one.
    placed: bool,
    script: fn(&Server),
}

/// A row on a server with default flags.
fn row(name: &'static str, script: fn(&Server)) -> Row {
    Row {
        name,
        cells: &[],
        flags: &[],
        per_loop: &[],
        placed: false,
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

    /// Flags of limits that are shared out over loops, each with one loop's share.
    fn per_loop(self, per_loop: &'static [(&'static str, u64)]) -> Row {
        Row { per_loop, ..self }
    }

    /// The row is about "k", and holds wherever its sessions are.
    fn placed(self) -> Row {
        Row {
            placed: true,
            ..self
        }
    }

    /// Where its sessions are to be, one run for each.
    fn placements(&self, loops: u16) -> &'static [Option<Placement>] {
        const EVERYWHERE: &[Option<Placement>] = &[
            None,
            Some(Placement::WithOwnerOf("k")),
            Some(Placement::AwayFromOwnerOf("k")),
        ];
        // On a single loop there is no other place.
        let count = if self.placed && loops > 1 { 3 } else { 1 };
        &EVERYWHERE[..count]
    }

    fn run(&self, configuration: Configuration, placement: Option<Placement>) {
        let shares: Vec<String> = self
            .per_loop
            .iter()
            .flat_map(|(flag, share)| {
                let limit = share * u64::from(configuration.loops);
                [(*flag).to_owned(), limit.to_string()]
            })
            .collect();
        let shares = shares.iter().map(String::as_str);
        let flags: Vec<&str> = self.flags.iter().copied().chain(shares).collect();
        let mut server = Server::start(configuration, &flags);
        if let Some(placement) = placement {
            server.place_sessions(placement);
        }
        (self.script)(&server);
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
        let mut runs = 0;
        let mut failed = Vec::new();
        for row in &table {
            for &placement in row.placements(configuration.loops) {
                let run = || row.run(configuration, placement);
                if catch_unwind(AssertUnwindSafe(run)).is_err() {
                    eprintln!("^ in row: {}, {placement:?}\n", row.name);
                    failed.push((row.name, placement));
                }
                runs += 1;
            }
        }
        println!("{} rows, {runs} runs, {} failed", table.len(), failed.len());
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
