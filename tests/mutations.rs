//! The faults that `.ci/mutations` puts into the sources still fit them, and each is
//! listed in docs/testing.md. Whether the simulation notices them takes a build each.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Fewer than these would show little.
const LEAST_MUTATIONS: usize = 25;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn patches() -> Vec<PathBuf> {
    let listed = fs::read_dir(root().join("tests/mutations")).expect("it is beside this file");
    let mut paths: Vec<PathBuf> = listed.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// A patch's file, and what each hunk finds and leaves there.
fn hunks(patch: &str) -> (String, Vec<(String, String)>) {
    let mut file = String::new();
    let mut hunks: Vec<(String, String)> = Vec::new();
    for line in patch.lines() {
        if let Some(path) = line.strip_prefix("--- a/") {
            file = path.to_owned();
        } else if line.starts_with("@@ ") {
            hunks.push(<(String, String)>::default());
        } else if let Some((before, after)) = hunks.last_mut() {
            // An empty context line may have lost its space.
            let text = line.get(1..).unwrap_or_default();
            if !line.starts_with('+') {
                before.push_str(text);
                before.push('\n');
            }
            if !line.starts_with('-') {
                after.push_str(text);
                after.push('\n');
            }
        }
    }
    (file, hunks)
}

#[test]
fn every_mutation_still_fits_the_sources() {
    let patches = patches();
    assert!(patches.len() >= LEAST_MUTATIONS, "{} left", patches.len());
    for path in patches {
        let patch = fs::read_to_string(&path).unwrap();
        let (file, hunks) = hunks(&patch);
        assert!(!hunks.is_empty(), "{}: no hunk", path.display());
        let source = fs::read_to_string(root().join(&file)).unwrap();
        for (before, after) in hunks {
            let found = source.matches(&before).count();
            assert_eq!(found, 1, "{} in {file}:\n{before}", path.display());
            assert_ne!(before, after, "{}: it changes nothing", path.display());
        }
    }
}

#[test]
fn every_mutation_is_listed_with_its_seeds() {
    let text = fs::read_to_string(root().join("docs/testing.md")).unwrap();
    let (_, section) = text.split_once("\n## Mutations\n").expect("its section");
    let section = section.split("\n## ").next().unwrap_or_default();
    for path in patches() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let row = format!("\n| `{name}` |");
        assert_eq!(section.matches(&row).count(), 1, "docs/testing.md: {name}");
    }
    let rows = section.matches("\n| `").count();
    assert_eq!(rows, patches().len(), "docs/testing.md lists what is gone");
}
