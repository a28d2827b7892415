//! The host memory that this process may still take: what the machine has, within the limits of its container (cgroups
//! of version 1 and 2) and of its shell (`ulimit -v`, `ulimit -d`).
//!
//! The number of cores needs no code of ours: `available_parallelism` knows CPU quotas and affinity.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::bytes::show;

/// The page size of x86-64, which this is built for.
const PAGE_BYTES: u64 = 4096;
/// Version 1 writes this, or a page less, where there is no limit.
const UNLIMITED: u64 = 1 << 60;

/// Host memory as this process sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostReading {
    /// What the machine has, or what the limit allows if that is less; 0 if the kernel does not report it.
    pub total_bytes: u64,
    /// What can still be taken without swapping.
    pub available_bytes: u64,
    /// The limit that decides, if it is not the machine's memory.
    pub limited_by: Option<HostLimit>,
}

/// A limit below the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLimit {
    /// The memory limit of the container or of the service.
    Cgroup {
        /// The limit.
        bytes: u64,
    },
    /// `ulimit -v`.
    AddressSpace {
        /// The limit.
        bytes: u64,
    },
    /// `ulimit -d`.
    Data {
        /// The limit.
        bytes: u64,
    },
}

impl HostLimit {
    /// How much it allows.
    pub fn bytes(self) -> u64 {
        let (HostLimit::Cgroup { bytes } | HostLimit::AddressSpace { bytes } | HostLimit::Data { bytes }) = self;
        bytes
    }
}

impl fmt::Display for HostLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            HostLimit::Cgroup { .. } => "memory limit of the container",
            HostLimit::AddressSpace { .. } => "ulimit -v",
            HostLimit::Data { .. } => "ulimit -d",
        };
        write!(f, "{what}: {}", show(self.bytes()))
    }
}

impl HostReading {
    /// The machine and the limits of this process now.
    pub fn now() -> HostReading {
        HostReading::read(Path::new("/"))
    }

    /// The same from the files below `root`, where `/proc` and `/sys` are.
    pub fn read(root: &Path) -> HostReading {
        let meminfo = text(&root.join("proc/meminfo"));
        let kib = |name: &str| number_after(&meminfo, name).unwrap_or(0).saturating_mul(1024);
        let mut reading =
            HostReading { total_bytes: kib("MemTotal:"), available_bytes: kib("MemAvailable:"), limited_by: None };
        let limits = cgroups(root).into_iter().chain(rlimits(root));
        for (limit, used_bytes) in limits {
            let left = limit.bytes().saturating_sub(used_bytes);
            if left < reading.available_bytes {
                reading.available_bytes = left;
                reading.total_bytes = reading.total_bytes.min(limit.bytes());
                reading.limited_by = Some(limit);
            }
        }
        reading
    }
}

/// The limit of every cgroup that this process is in, from its own to the root, and what is used of it. Page cache that
/// the kernel can drop at once does not count as used.
fn cgroups(root: &Path) -> Vec<(HostLimit, u64)> {
    let mut found = Vec::new();
    for line in text(&root.join("proc/self/cgroup")).lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (mount, files) = match controllers {
            "" => ("sys/fs/cgroup", ["memory.max", "memory.current", "inactive_file"]),
            list if list.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"])
            }
            _ => continue,
        };
        let mount = root.join(mount);
        for folder in folders(&mount, path) {
            let number = |name: &str| text(&folder.join(name)).trim().parse::<u64>().ok();
            let Some(bytes) = number(files[0]).filter(|limit| *limit < UNLIMITED) else { continue };
            let cache = number_after(&text(&folder.join("memory.stat")), files[2]).unwrap_or(0);
            let used = number(files[1]).unwrap_or(0).saturating_sub(cache);
            found.push((HostLimit::Cgroup { bytes }, used));
        }
    }
    found
}

/// The folder of a cgroup and of all above it. In a container the path may be that of the host: then only the mount
/// itself is there, and it is the container's.
fn folders(mount: &Path, path: &str) -> Vec<PathBuf> {
    let own = mount.join(path.trim_start_matches('/'));
    let chain = own.ancestors().take_while(|folder| folder.starts_with(mount)).map(Path::to_owned);
    chain.filter(|folder| folder.is_dir()).collect()
}

/// Limits of the shell on address space and data, and what this process has of them.
fn rlimits(root: &Path) -> Vec<(HostLimit, u64)> {
    let limits = text(&root.join("proc/self/limits"));
    let pages = text(&root.join("proc/self/statm"));
    let used = |field: usize| {
        pages.split_whitespace().nth(field).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE_BYTES
    };
    let space = number_after(&limits, "Max address space").map(|bytes| (HostLimit::AddressSpace { bytes }, used(0)));
    let data = number_after(&limits, "Max data size").map(|bytes| (HostLimit::Data { bytes }, used(5)));
    space.into_iter().chain(data).collect()
}

/// The first number behind `name` in the line that begins with it; none for `unlimited`.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine of 16 GiB, half of it free, with these files.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, HostReading) {
        let root = tempfile::tempdir().unwrap();
        let meminfo = "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n";
        for (name, text) in [("proc/meminfo", meminfo)].iter().chain(files) {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let reading = HostReading::read(root.path());
        (root, reading)
    }

    fn check(files: &[(&str, &str)], available_mib: u64, limited_by: Option<HostLimit>) {
        let (_root, reading) = machine(files);
        assert_eq!((reading.available_bytes / MIB, reading.limited_by), (available_mib, limited_by), "{files:?}");
    }

    #[test]
    fn without_limits_it_is_the_machine() {
        check(&[], 8192, None);
        check(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")], 8192, None);
        let limits = "Limit  Soft Limit Hard Limit Units\nMax address space unlimited unlimited bytes\n";
        check(&[("proc/self/limits", limits)], 8192, None);
        assert_eq!(HostReading::read(Path::new("/nonexistent")), HostReading::default());
        assert!(HostReading::now().available_bytes > 0);
    }

    #[test]
    fn a_cgroup_of_version_2_counts_with_all_above_it_and_without_droppable_cache() {
        let limit = |mib: u64| Some(HostLimit::Cgroup { bytes: mib * MIB });
        let own = [
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("sys/fs/cgroup/pod/box/memory.max", "157286400\n"),
            ("sys/fs/cgroup/pod/box/memory.current", "73400320\n"),
            ("sys/fs/cgroup/pod/box/memory.stat", "anon 1\ninactive_file 20971520\n"),
        ];
        check(&own, 150 - 70 + 20, limit(150));
        let above = [("sys/fs/cgroup/pod/memory.max", "104857600"), ("sys/fs/cgroup/pod/memory.current", "94371840")];
        check(&[&own[..], &above].concat(), 10, limit(100));
        // In a cgroup namespace the path is that of the host, and the mount is the container's own.
        let inside = [("proc/self/cgroup", "0::/docker/abc\n"), ("sys/fs/cgroup/memory.max", "157286400")];
        check(&inside, 150, limit(150));
    }

    #[test]
    fn a_cgroup_of_version_1_counts_too() {
        let files = [
            ("proc/self/cgroup", "9:name=systemd:/\n4:memory,hugetlb:/jobs/7\n0::/\n"),
            ("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/jobs/7/memory.stat", "inactive_file 1\ntotal_inactive_file 268435456\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        check(&files, 768, Some(HostLimit::Cgroup { bytes: 1 << 30 }));
    }

    #[test]
    fn limits_of_the_shell_count_too() {
        let limits = "Max data size             2147483648           unlimited            bytes     \n\
                      Max address space         4294967296           unlimited            bytes     \n";
        // 1 GiB of address space and half a gibibyte of data are used.
        let files = [("proc/self/limits", limits), ("proc/self/statm", "262144 10 5 1 0 131072 0\n")];
        check(&files, 1536, Some(HostLimit::Data { bytes: 2 << 30 }));
        let (_root, reading) = machine(&files);
        assert_eq!(reading.limited_by.unwrap().to_string(), "ulimit -d: 2048 MB");
    }
}
