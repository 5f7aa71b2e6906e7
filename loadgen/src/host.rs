//! The machine: a core for this thread, who listens where, and what a process has used.

use crate::net::Address;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Binds the calling thread to one core.
///
/// # Errors
/// There is no such core, or this process may not use it.
pub(crate) fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::other("there is no such core"));
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Nanoseconds of CPU that this thread has used so far.
pub(crate) fn thread_cpu_time_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// Nanoseconds of CPU that the threads of a process have used so far; threads that have
/// ended are not counted.
///
/// # Errors
/// There is no such process, or the kernel keeps no scheduler statistics.
pub(crate) fn cpu_time_ns(pid: u32) -> io::Result<u64> {
    let mut total_ns = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        let used = text.split_whitespace().next().unwrap_or_default();
        total_ns += used.parse::<u64>().map_err(io::Error::other)?;
    }
    Ok(total_ns)
}

/// The process that listens on a local address, if it can be seen.
pub(crate) fn listener_pid(address: &Address) -> Option<u32> {
    let inodes = match address {
        Address::Tcp(address) => {
            let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
            let texts = tables
                .iter()
                .filter_map(|path| fs::read_to_string(path).ok());
            texts
                .flat_map(|text| tcp_listeners(&text, *address))
                .collect()
        }
        Address::Unix(path) => {
            let table = fs::read_to_string("/proc/net/unix").ok()?;
            unix_listeners(&table, &path.to_string_lossy())
        }
    };
    owner_of(&inodes)
}

/// Inodes of the sockets that listen on `wanted`, of one of the kernel's tables.
fn tcp_listeners(table: &str, wanted: SocketAddr) -> HashSet<u64> {
    const LISTENING: &str = "0A";
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (ip, port) = fields.get(1)?.split_once(':')?;
        let is_listening = *fields.get(3)? == LISTENING;
        let has_port = u16::from_str_radix(port, 16).ok()? == wanted.port();
        let ip = parse_ip(ip)?.to_canonical();
        let has_address = ip.is_unspecified() || ip == wanted.ip().to_canonical();
        let inode = fields.get(9)?.parse().ok()?;
        (is_listening && has_port && has_address).then_some(inode)
    };
    table.lines().filter_map(inode).collect()
}

/// The kernel writes each 32-bit word of an address in its own byte order.
fn parse_ip(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(at..at + 8)?, 16).ok();
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into()),
        32 => {
            let mut bytes = [0; 16];
            for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(8 * index)?.to_ne_bytes());
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

fn unix_listeners(table: &str, path: &str) -> HashSet<u64> {
    const ACCEPTS: u32 = 0x10000;
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
        let is_it = flags & ACCEPTS != 0 && *fields.get(7)? == path;
        is_it.then_some(fields.get(6)?.parse().ok()?)
    };
    table.lines().filter_map(inode).collect()
}

fn owner_of(inodes: &HashSet<u64>) -> Option<u32> {
    if inodes.is_empty() {
        return None;
    }
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let descriptors = fs::read_dir(entry.path().join("fd")).ok()?;
        let owns = descriptors.flatten().any(|descriptor| {
            let target = fs::read_link(descriptor.path()).unwrap_or_default();
            let inode = target.to_str().and_then(|text| {
                text.strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .parse()
                    .ok()
            });
            inode.is_some_and(|inode| inodes.contains(&inode))
        });
        owns.then_some(pid)
    })
}

/// Reads a list of cores: `1`, `2,3` or `4-7`.
///
/// # Errors
/// It is none.
pub(crate) fn parse_cores(text: &str) -> Result<Vec<usize>, String> {
    let bad = || format!("{text:?} is no list of cores such as 1 or 2,3 or 4-7");
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.parse().map_err(|_| bad())?;
        let last: usize = last.parse().map_err(|_| bad())?;
        if first > last || last >= CpuSet::MAX_CPU {
            return Err(bad());
        }
        cores.extend(first..=last);
    }
    Ok(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_listens_and_has_used_cpu() {
        let own = std::process::id();
        assert!(cpu_time_ns(own).expect("schedstat is readable") > 0);
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(address) else {
                continue;
            };
            let mut bound = listener.local_addr().expect("bound");
            if bound.ip().is_unspecified() {
                bound.set_ip(Ipv4Addr::LOCALHOST.into());
            }
            assert_eq!(listener_pid(&Address::Tcp(bound)), Some(own), "{address}");
            bound.set_ip(Ipv4Addr::new(127, 0, 0, 77).into());
            drop(listener);
            assert_eq!(listener_pid(&Address::Tcp(bound)), None);
        }
    }

    #[test]
    fn a_unix_listener_is_found_by_its_path() {
        let path = std::env::temp_dir().join(format!("loadgen-host-{}", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a free path");
        let found = listener_pid(&Address::Unix(path.clone()));
        drop(listener);
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(found, Some(std::process::id()));
        assert_eq!(listener_pid(&Address::Unix(path)), None);
    }

    #[test]
    fn core_lists_are_read() {
        assert_eq!(parse_cores("1"), Ok(vec![1]));
        assert_eq!(parse_cores("0,4-6"), Ok(vec![0, 4, 5, 6]));
        for text in ["", "a", "3-1", "-1", "1,,2", "999999"] {
            assert!(parse_cores(text).is_err(), "{text}");
        }
    }
}
