//! How much memory this process may use: the default of `--max-memory`.

use std::path::Path;

/// 80 % of what the cgroup allows or the machine has, whichever is less: the
/// rest is for sockets, buffers and what else the process needs.
pub(super) fn default_max_memory_bytes() -> u64 {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let physical_bytes = {
        let info = rustix::system::sysinfo();
        // c_ulong: as wide as u64 or narrower.
        (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
    };
    let membership = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    share_of(physical_bytes, cgroup_limit_bytes(&membership, read))
}

fn share_of(physical_bytes: u64, cgroup_limit_bytes: Option<u64>) -> u64 {
    let available_bytes = cgroup_limit_bytes.map_or(physical_bytes, |it| it.min(physical_bytes));
    available_bytes / 5 * 4
}

/// The least memory limit on the way from this process's cgroups up to their
/// roots, of both cgroup versions: a parent's limit binds its children too.
///
/// `membership` is what /proc/self/cgroup says, see cgroups(7).
fn cgroup_limit_bytes(membership: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    membership
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            Some((controllers, path.trim_start_matches('/')))
        })
        .flat_map(|(controllers, path)| {
            let is_v1_memory = controllers.split(',').any(|it| it == "memory");
            let (mounts, file): (&[&str], &str) = match controllers {
                "" => (&["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], "memory.max"),
                _ if is_v1_memory => (&["/sys/fs/cgroup/memory"], "memory.limit_in_bytes"),
                _ => (&[], ""),
            };
            mounts
                .iter()
                .flat_map(move |mount| groups_upward(Path::new(mount), path, file))
        })
        // "max", version 2's word for no limit, is no number.
        .filter_map(|file| read(&file)?.trim().parse().ok())
        .min()
}

/// `file` in `mount`/`path` and in every directory above it, up to `mount`.
fn groups_upward(mount: &Path, path: &str, file: &str) -> Vec<std::path::PathBuf> {
    mount
        .join(path)
        .ancestors()
        .take_while(|group| group.starts_with(mount))
        .map(|group| group.join(file))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(membership: &str, files: &[(&str, &str)]) -> Option<u64> {
        cgroup_limit_bytes(membership, |path| {
            files
                .iter()
                .find(|(name, _)| Path::new(name) == path)
                .map(|(_, text)| (*text).to_string())
        })
    }

    #[test]
    fn the_least_limit_upward_counts() {
        let v2 = "0::/a/b\n";
        let v1 = "5:cpu,cpuacct:/x\n4:memory:/p/q\n0::/\n";
        for (membership, files, expected) in [
            (v2, &[][..], None),
            (v2, &[("/sys/fs/cgroup/a/b/memory.max", "max\n")], None),
            (
                v2,
                &[("/sys/fs/cgroup/a/b/memory.max", "4096\n")],
                Some(4096),
            ),
            (
                v2,
                &[
                    ("/sys/fs/cgroup/a/b/memory.max", "8192\n"),
                    ("/sys/fs/cgroup/a/memory.max", "4096\n"),
                    ("/sys/fs/cgroup/memory.max", "max\n"),
                ],
                Some(4096),
            ),
            // Without a namespace of its own a container sees the host's path, but
            // only its own group as the root.
            (v2, &[("/sys/fs/cgroup/memory.max", "77\n")], Some(77)),
            (
                v1,
                &[("/sys/fs/cgroup/memory/p/q/memory.limit_in_bytes", "5\n")],
                Some(5),
            ),
            (
                v1,
                &[("/sys/fs/cgroup/memory/memory.limit_in_bytes", "6\n")],
                Some(6),
            ),
            (v1, &[("/sys/fs/cgroup/cpu/x/memory.max", "7\n")], None),
            (v1, &[("/sys/fs/cgroup/unified/memory.max", "8\n")], Some(8)),
            ("", &[("/sys/fs/cgroup/memory.max", "9\n")], None),
            ("nonsense\n1:2\n", &[], None),
        ] {
            assert_eq!(
                limit(membership, files),
                expected,
                "{membership:?} {files:?}"
            );
        }
    }

    #[test]
    fn four_fifths_of_the_smaller() {
        assert_eq!(share_of(1000, None), 800);
        assert_eq!(share_of(1000, Some(500)), 400);
        // Version 1's "no limit" is a huge number.
        assert_eq!(share_of(1000, Some(9_223_372_036_854_771_712)), 800);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(default_max_memory_bytes() > 0);
    }
}
