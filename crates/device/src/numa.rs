//! The NUMA node of a card: the cores and the memory next to it, by the files of Linux.
//!
//! Copies between a card and host memory are fastest with memory of the card's own node: other memory is behind the link
//! between the processors.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The NUMA node of a card. Known only on machines with more than one node: with one, all memory is equally near.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub node: u32,
    /// Its cores that this process may use, in ascending order. May be empty.
    pub cores: Vec<usize>,
}

impl NumaNode {
    /// The node of the card with this PCI bus id, from the files below `root`, where `/proc` and `/sys` are. `None` if the
    /// machine has one node, or if the system does not know the node of the card.
    pub fn read(root: &Path, bus_id: &str) -> Option<NumaNode> {
        // -1 where the firmware does not say.
        let node: u32 = fs::read_to_string(pci_folder(root, bus_id)?.join("numa_node")).ok()?.trim().parse().ok()?;
        let nodes = nodes_with_cores(&root.join("sys/devices/system/node"));
        let cores = &nodes.iter().find(|(number, _)| *number == node)?.1;
        if nodes.len() < 2 {
            return None;
        }
        let allowed = allowed_cores(root);
        let usable = |core: &&usize| allowed.as_ref().is_none_or(|allowed| allowed.contains(core));
        Some(NumaNode { node, cores: cores.iter().filter(usable).copied().collect() })
    }

    /// Its cores as the system writes them: `0-15,32-47`.
    pub fn core_list(&self) -> String {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for &core in &self.cores {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == core => *last = core,
                _ => ranges.push((core, core)),
            }
        }
        let text = |(first, last): &(usize, usize)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        ranges.iter().map(text).collect::<Vec<_>>().join(",")
    }
}

impl fmt::Display for NumaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cores[..] {
            [] => write!(f, "NUMA node {} (this process may use none of its cores)", self.node),
            [only] => write!(f, "NUMA node {} (core {only})", self.node),
            _ => write!(f, "NUMA node {} (cores {})", self.node, self.core_list()),
        }
    }
}

/// The folder of a PCI device below `root`, where `/sys` is: NVML writes the domain of a bus id with eight digits and capital
/// letters, Linux with four and small ones. `None` if it is no bus id.
pub fn pci_folder(root: &Path, bus_id: &str) -> Option<PathBuf> {
    let (domain, rest) = bus_id.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    Some(root.join("sys/bus/pci/devices").join(format!("{domain:04x}:{}", rest.to_ascii_lowercase())))
}

/// The nodes that have cores. Memory alone, such as that of an accelerator, can be a node too.
fn nodes_with_cores(folder: &Path) -> Vec<(u32, Vec<usize>)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let node = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let cores = core_numbers(&fs::read_to_string(entry.path().join("cpulist")).ok()?)?;
        (!cores.is_empty()).then_some((number, cores))
    };
    entries.filter_map(node).collect()
}

/// The cores that this process may use; `None` if the system does not say.
fn allowed_cores(root: &Path) -> Option<Vec<usize>> {
    let status = fs::read_to_string(root.join("proc/self/status")).ok()?;
    core_numbers(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

/// The numbers of `0-3,8,10-11`; `None` for any other text.
fn core_numbers(list: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last > MAX_CORE {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

/// Far above any machine: a broken file must not fill the memory.
const MAX_CORE: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of two nodes, with these files instead of or beside its own.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let own = [
            ("sys/bus/pci/devices/0000:17:00.0/numa_node", "0\n"),
            ("sys/bus/pci/devices/0000:ca:00.0/numa_node", "1\n"),
            ("sys/bus/pci/devices/10000:01:00.0/numa_node", "1\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3,8-11\n"),
            ("sys/devices/system/node/node1/cpulist", "4-7,12\n"),
            ("sys/devices/system/node/possible", "0-1\n"),
        ];
        for (name, text) in own.iter().chain(files) {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn check(files: &[(&str, &str)], bus_id: &str, expected: Option<&str>) {
        let found = NumaNode::read(machine(files).path(), bus_id).map(|node| node.to_string());
        assert_eq!(found.as_deref(), expected, "{bus_id} with {files:?}");
    }

    #[test]
    fn a_card_has_the_node_and_the_cores_that_the_system_says() {
        check(&[], "00000000:17:00.0", Some("NUMA node 0 (cores 0-3,8-11)"));
        check(&[], "00000000:CA:00.0", Some("NUMA node 1 (cores 4-7,12)"));
        // A virtual machine may have domains of more than four digits.
        check(&[], "00010000:01:00.0", Some("NUMA node 1 (cores 4-7,12)"));
        let memory_alone = [("sys/devices/system/node/node2/cpulist", "\n")];
        check(&memory_alone, "00000000:17:00.0", Some("NUMA node 0 (cores 0-3,8-11)"));
    }

    #[test]
    fn only_cores_that_the_process_may_use_count() {
        let some = [("proc/self/status", "Name:\ttandem\nCpus_allowed:\tff\nCpus_allowed_list:\t2-4\n")];
        check(&some, "00000000:17:00.0", Some("NUMA node 0 (cores 2-3)"));
        check(&some, "00000000:CA:00.0", Some("NUMA node 1 (core 4)"));
        let others = [("proc/self/status", "Cpus_allowed_list:\t0-3\n")];
        check(&others, "00000000:CA:00.0", Some("NUMA node 1 (this process may use none of its cores)"));
    }

    #[test]
    fn an_unknown_node_and_a_single_node_are_none() {
        check(&[("sys/bus/pci/devices/0000:17:00.0/numa_node", "-1\n")], "00000000:17:00.0", None);
        check(&[("sys/bus/pci/devices/0000:17:00.0/numa_node", "7\n")], "00000000:17:00.0", None);
        check(&[("sys/devices/system/node/node1/cpulist", "\n")], "00000000:17:00.0", None);
        for damaged in ["x\n", "3-\n", "0-99999999999\n"] {
            check(&[("sys/devices/system/node/node1/cpulist", damaged)], "00000000:17:00.0", None);
        }
        for bus_id in ["00000000:99:00.0", "", "no bus", "zz:17:00.0"] {
            check(&[], bus_id, None);
        }
        assert_eq!(NumaNode::read(Path::new("/nonexistent"), "00000000:17:00.0"), None);
    }
}
