//! Two copies: which one counts, and what cannot be told.

use super::disk::Disk;
use crate::store::copies::{COPIES, Copies, LoadError, Loaded};
use crate::store::format::{self, End, State};

fn state(d_ms: u64) -> State {
    State {
        mark: 77,
        d_ms,
        end: End::Unclean,
    }
}

fn load(disk: &Disk) -> Result<Loaded, LoadError> {
    Copies::load(disk.clone()).map(|(_, loaded)| loaded)
}

/// A disk on which a server has raised D to `d_ms` and ended.
fn disk_with(d_ms: u64) -> Disk {
    let disk = Disk::new(1);
    let (mut copies, _) = Copies::load(disk.clone()).expect("it is empty");
    copies.write(&state(1)).expect("the disk works");
    copies.write(&state(d_ms)).expect("the disk works");
    disk
}

#[test]
fn an_empty_disk_is_a_first_start() {
    let loaded = load(&Disk::new(1));
    let nothing = Loaded {
        state: None,
        damaged: None,
    };
    assert_eq!(loaded, Ok(nothing));
}

#[test]
fn what_was_written_survives_a_power_loss() {
    let disk = disk_with(8192);
    disk.lose_power();
    let whole = Loaded {
        state: Some(state(8192)),
        damaged: None,
    };
    assert_eq!(load(&disk), Ok(whole));
}

#[test]
fn of_two_whole_copies_the_newer_counts() {
    for newer in 0..COPIES {
        let disk = Disk::new(1);
        disk.put(newer, Some(format::encode(9, &state(9)).to_vec()));
        disk.put(1 - newer, Some(format::encode(8, &state(8)).to_vec()));
        let loaded = load(&disk).expect("both are whole");
        assert_eq!(loaded.state, Some(state(9)));
    }
}

#[test]
fn one_damaged_or_missing_copy_is_told_of_and_mended() {
    for copy in 0..COPIES {
        for (damage, word) in [(None, "missing"), (Some(vec![1, 2]), "corrupted")] {
            let disk = disk_with(8192);
            disk.put(copy, damage);
            let (mut copies, loaded) = Copies::load(disk.clone()).expect("one is whole");
            assert_eq!(loaded.state, Some(state(8192)));
            let damaged = loaded.damaged.expect("it is told");
            assert_eq!(damaged, format!("copy {copy} is {word}"));
            copies.write(&state(3)).expect("the disk works");
            assert_eq!(load(&disk).expect("both are whole").damaged, None);
        }
    }
}

#[test]
fn without_a_whole_copy_nothing_is_taken_for_granted() {
    let garbage = || Some(vec![7; format::STATE_BYTES]);
    for copies in [[garbage(), garbage()], [garbage(), None], [None, garbage()]] {
        let disk = Disk::new(1);
        for (copy, bytes) in copies.into_iter().enumerate() {
            disk.put(copy, bytes);
        }
        let error = load(&disk).expect_err("none is whole").to_string();
        for told in ["copy 0 is", "copy 1 is", "docs/operations.md"] {
            assert!(error.contains(told), "{error}");
        }
    }
}

#[test]
fn no_flipped_bit_of_a_copy_makes_another_state_of_it() {
    for copy in 0..COPIES {
        for bit in 0..format::STATE_BYTES * 8 {
            let disk = disk_with(8192);
            let mut bytes = disk.contents(copy).expect("it was written");
            bytes[bit / 8] ^= 1 << (bit % 8);
            disk.put(copy, Some(bytes));
            let loaded = load(&disk).expect("the other is whole");
            assert_eq!(loaded.state, Some(state(8192)), "bit {bit}");
            assert!(loaded.damaged.is_some());
        }
    }
}

#[test]
fn a_copy_of_another_version_is_left_alone_whatever_the_other_says() {
    let mut newer = vec![0; 24];
    newer[..8].copy_from_slice(b"LHstate\n");
    newer[8] = 2;
    let checksum = xxhash_rust::xxh3::xxh3_64(&newer[..16]);
    newer[16..].copy_from_slice(&checksum.to_le_bytes());
    for copy in 0..COPIES {
        for other in [
            Some(format::encode(9, &state(9)).to_vec()),
            Some(vec![1]),
            None,
        ] {
            let disk = Disk::new(1);
            disk.put(copy, Some(newer.clone()));
            disk.put(1 - copy, other);
            let unknown = LoadError::UnknownVersion {
                name: format!("copy {copy}"),
                version: 2,
            };
            assert_eq!(load(&disk), Err(unknown));
            assert_eq!(disk.steps(), 0);
        }
    }
}

#[test]
fn a_copy_that_failed_is_the_first_to_be_written_again() {
    let disk = disk_with(1);
    let (mut copies, _) = Copies::load(disk.clone()).expect("both are whole");
    copies.write(&state(2)).expect("the disk works");
    // The first copy is written, its sync fails; and again; and then all works.
    for _ in 0..2 {
        disk.stop_after(Some(2));
        let error = copies.write(&state(3)).expect_err("the disk has stopped");
        assert_eq!(error.name, "copy 0");
        let (_, other) = format::decode(&disk.contents(1).expect("it is there")).expect("whole");
        assert_eq!(other, state(2), "the other copy is not touched meanwhile");
    }
    disk.stop_after(None);
    copies.write(&state(4)).expect("the disk works");
    disk.lose_power();
    assert_eq!(load(&disk).expect("both are whole").state, Some(state(4)));
}
