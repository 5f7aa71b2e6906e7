//! Which cores there are, and which loop runs on which.

use std::fmt;

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::limits::MAX_LOOPS;

/// `--pin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// The kernel moves loops about as it likes.
    Off,
    /// Each loop on one of the cores that this process may use, in order.
    Auto,
    /// Each loop on the core of its number.
    Cores(Vec<usize>),
}

impl Pin {
    /// Reads `off`, `auto`, or core numbers with commas and ranges.
    ///
    /// # Errors
    /// It is none of that, or a core stands there twice.
    pub fn parse(text: &str) -> Result<Pin, String> {
        match text {
            "off" => Ok(Pin::Off),
            "auto" => Ok(Pin::Auto),
            list => parse_cores(list).map(Pin::Cores),
        }
    }

    /// The core of each of `shards` loops, `None` where it is not pinned.
    ///
    /// # Errors
    /// There are fewer cores than loops, more were given than there are loops, or one
    /// that this process may not use.
    pub fn cores(&self, shards: u16) -> Result<Vec<Option<usize>>, String> {
        let usable = usable_cores();
        self.cores_of(shards, &usable)
    }

    fn cores_of(&self, shards: u16, usable: &[usize]) -> Result<Vec<Option<usize>>, String> {
        let count = usize::from(shards);
        let chosen = match self {
            Pin::Off => return Ok(vec![None; count]),
            Pin::Auto if usable.len() < count => {
                let cores = usable.len();
                return Err(format!(
                    "--shards {shards} is more than the {cores} cores that this process may use"
                ));
            }
            Pin::Auto => &usable[..count],
            Pin::Cores(given) if given.len() != count => {
                return Err(format!(
                    "{} cores are given for the {shards} loops of --shards",
                    given.len()
                ));
            }
            Pin::Cores(given) => given,
        };
        match chosen.iter().find(|core| !usable.contains(core)) {
            Some(core) => Err(format!("this process may not use core {core}")),
            None => Ok(chosen.iter().copied().map(Some).collect()),
        }
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pin::Off => f.write_str("off"),
            Pin::Auto => f.write_str("auto"),
            Pin::Cores(cores) => {
                let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
                f.write_str(&cores.join(","))
            }
        }
    }
}

/// A loop for each core that this process may use.
pub(super) fn default_shards() -> u16 {
    let cores = u16::try_from(usable_cores().len()).unwrap_or(MAX_LOOPS);
    cores.clamp(1, MAX_LOOPS)
}

fn usable_cores() -> Vec<usize> {
    // It fails on no kernel that runs this; then no core is known.
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU)
        .filter(|&core| set.is_set(core))
        .collect()
}

fn parse_cores(list: &str) -> Result<Vec<usize>, String> {
    let number = |text: &str| {
        let core = text.parse().ok().filter(|core| *core < CpuSet::MAX_CPU);
        core.ok_or_else(|| format!("{text:?} is no core number: off, auto, or such as 2,3 or 4-7"))
    };
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(format!("{part}: the range ends before it begins"));
        }
        for core in first..=last {
            if cores.contains(&core) {
                return Err(format!("core {core} is given twice"));
            }
            cores.push(core);
        }
    }
    Ok(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read() {
        for (text, expected) in [
            ("off", Ok(Pin::Off)),
            ("auto", Ok(Pin::Auto)),
            ("3", Ok(Pin::Cores(vec![3]))),
            ("2,3,0", Ok(Pin::Cores(vec![2, 3, 0]))),
            ("4-6,1", Ok(Pin::Cores(vec![4, 5, 6, 1]))),
            ("7-7", Ok(Pin::Cores(vec![7]))),
            ("", Err(())),
            ("1,", Err(())),
            ("6-4", Err(())),
            ("1,0-2", Err(())),
            ("-1", Err(())),
            ("1024", Err(())),
            ("on", Err(())),
        ] {
            assert_eq!(Pin::parse(text).map_err(drop), expected, "{text:?}");
        }
    }

    #[test]
    fn each_loop_gets_a_core_that_may_be_used() {
        let usable = [1, 4, 5];
        let cores = |pin: &Pin, shards| pin.cores_of(shards, &usable).ok();
        assert_eq!(cores(&Pin::Off, 9), Some(vec![None; 9]));
        assert_eq!(cores(&Pin::Auto, 2), Some(vec![Some(1), Some(4)]));
        assert_eq!(cores(&Pin::Auto, 4), None, "more loops than cores");
        let given = Pin::Cores(vec![5, 1]);
        assert_eq!(cores(&given, 2), Some(vec![Some(5), Some(1)]));
        assert_eq!(cores(&given, 1), None, "more cores than loops");
        assert_eq!(cores(&given, 3), None, "more loops than cores given");
        assert_eq!(cores(&Pin::Cores(vec![2]), 1), None, "not to be used");
    }
}
