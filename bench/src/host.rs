//! The machine: a core for this thread, and what another process used of it.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Binds the calling thread to one core.
///
/// # Errors
/// There is no such core, or this process may not use it.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::other(format!("no core {core}")));
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Nanoseconds of CPU that the threads of a process have used so far.
///
/// # Errors
/// There is no such process, or the kernel keeps no scheduler statistics.
pub fn cpu_time_ns(pid: u32) -> io::Result<u64> {
    let mut total_ns = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        total_ns += first_number(&text)?;
    }
    Ok(total_ns)
}

/// Bytes of a process's memory that are resident now.
///
/// # Errors
/// There is no such process.
pub fn resident_bytes(pid: u32) -> io::Result<u64> {
    // Not `status`, whose counters are kept per thread and lag behind (proc(5)).
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    Ok(first_number(line.unwrap_or_default())? * 1024)
}

fn first_number(text: &str) -> io::Result<u64> {
    let word = text.split_whitespace().next().unwrap_or_default();
    word.parse()
        .map_err(|_| io::Error::other(format!("not a number in /proc: {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_cpu_and_memory() {
        let pid = std::process::id();
        assert!(cpu_time_ns(pid).expect("schedstat is readable") > 0);
        assert!(resident_bytes(pid).expect("smaps_rollup is readable") > 4096);
    }
}
